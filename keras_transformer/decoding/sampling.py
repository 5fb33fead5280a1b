"""Sampling (temperature, top-k, nucleus) with any step function and any cache."""

from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.decoding.loop import (
    StepDecoder,
    decode_loop,
    has_dynamic_shapes,
    next_logits,
    resolve_lengths,
)
from keras_transformer.decoding.options import Sampling, SpecialIds
from keras_transformer.decoding.top_k import top_k as select_top_k
from keras_transformer.numerics.indexing import gather, gather_each, shape


def sample(
    decoder,
    cache,
    context,
    batch_size,
    max_length,
    sampling=Sampling(),
    ids=SpecialIds(),
    vocabulary_size=None,
    buffer_length=None,
    drop_finished="auto",
    seed=None,
    first_ids=None,
):
    """Draws sequences token by token from the model's distribution.

    The other arguments are the same as for `beam_search`.

    Args:
        cache: Nest of tensors whose leading axis is batch * num_samples.
        sampling: `Sampling`; its `extra_length` is not used here.
        seed: `keras.random.SeedGenerator` that replaces `sampling.seed`, or `None`. The
            same seed gives the same samples with and without `drop_finished`.

    Returns:
        `(sequences, scores)`: int32 `[batch, num_samples, buffer_length]`, including
        the end id, then padding; float32 `[batch, num_samples]`, the log-probability of
        each sequence at temperature 1 over the whole vocabulary. Sequences are not
        sorted by score.

    Raises:
        ValueError: If the end id equals another special id.

    Examples:
        >>> def step(ids, cache, context, index):
        ...     return keras.ops.one_hot(ids[:, 0] + 1, 8) * 99, cache
        ...
        >>> sampling = kt.Sampling(num_samples=2, seed=1)
        >>> ids = kt.decoding.SpecialIds(end=6)
        >>> sequences, scores = kt.decoding.sample(step, {}, {}, 1, 9, sampling, ids)
        >>> sequences[0].numpy().tolist()
        [[3, 4, 5, 6, 0, 0, 0, 0, 0], [3, 4, 5, 6, 0, 0, 0, 0, 0]]
    """
    decoder = StepDecoder.of(decoder)
    drop_finished = has_dynamic_shapes(drop_finished)
    num_samples = sampling.num_samples
    excluded = ids.excluded_ids()
    max_lengths, buffer_length = resolve_lengths(max_length, buffer_length, batch_size)

    def step(state, cache, context, index):
        logits, cache = next_logits(decoder, state.last_ids, cache, context, index)
        bias = _exclusion_bias(logits, vocabulary_size, excluded)
        # The largest logit becomes 0, so that a low temperature gives no infinity.
        scaled = logits + bias
        scaled = scaled - ops.max(scaled, axis=-1, keepdims=True)
        tokens = _draw(
            scaled / sampling.temperature,
            ops.reshape(gather(state.uniforms, index, axis=2), (-1, 1)),
            sampling.top_k,
            sampling.top_p,
        )
        log_probs = gather_each(logits, tokens, axis=1)
        if not decoder.returns_log_probs:
            log_probs = log_probs - ops.logsumexp(logits, axis=-1, keepdims=True)
        tokens = ops.reshape(tokens, (-1, num_samples))
        log_probs = ops.reshape(log_probs, (-1, num_samples))
        if first_ids is not None:
            is_first = index == 0
            tokens = ops.where(is_first, state.first_ids[:, None], tokens)
            log_probs = ops.where(is_first, 0.0, log_probs)
        return _append(state, tokens, log_probs, index, ids), cache

    sizes = (batch_size, num_samples, buffer_length)
    seed = sampling.seed if seed is None else seed
    state = _initial_state(max_lengths, sizes, ids, seed)
    if first_ids is not None:
        state = state._replace(first_ids=ops.cast(first_ids, "int32"))
    state = decode_loop(
        *(step, state, cache, context, buffer_length, drop_finished),
        decoder.compact if drop_finished else decoder.grow,
    )
    return state.sequences, state.log_probs


class SampleState(NamedTuple):
    """Samples of all sentences."""

    sequences: Any  # int32 [batch, num_samples, buffer_length]
    log_probs: Any  # float32 [batch, num_samples]
    last_ids: Any  # int32 [batch, num_samples]
    ended: Any  # bool [batch, num_samples]
    uniforms: Any  # float32 [batch, num_samples, buffer_length], in [0, 1)
    max_lengths: Any  # int32 [batch]
    done: Any  # bool [batch]
    first_ids: Any = ()  # int32 [batch] if first tokens are forced


def _initial_state(max_lengths, sizes, ids, seed):
    done = max_lengths <= 0
    return SampleState(
        sequences=ops.full(sizes, ids.pad, dtype="int32"),
        log_probs=ops.zeros(sizes[:2], dtype="float32"),
        last_ids=ops.full(sizes[:2], ids.start, dtype="int32"),
        ended=ops.broadcast_to(done[:, None], sizes[:2]),
        # One number per token. All are drawn at once, so that a sentence's samples do
        # not depend on when other sentences leave the batch.
        uniforms=keras.random.uniform(sizes, dtype="float32", seed=seed),
        max_lengths=max_lengths,
        done=done,
    )


def _exclusion_bias(logits, vocabulary_size, excluded):
    """Returns float32 `[vocabulary]`, minus infinity for excluded ids, else 0."""
    bias = np.zeros(logits.shape[-1], "float32")
    bias[vocabulary_size or bias.size :] = -np.inf
    bias[[i for i in excluded if i < bias.size]] = -np.inf
    return ops.convert_to_tensor(bias)


def _draw(logits, uniforms, top_k, top_p):
    """Draws an id per row, int32 `[rows, 1]`, by inverting the cumulative distribution.

    `logits` are `[rows, vocabulary]`, and `uniforms` `[rows, 1]` in [0, 1).
    """
    tokens = None
    if top_k is not None or top_p is not None:
        size = logits.shape[-1]
        num_kept = size if top_k is None else min(top_k, size)
        logits, tokens = select_top_k(logits, num_kept)
        if num_kept == 1:
            return tokens
    probabilities = ops.softmax(logits, axis=-1)
    if top_p is not None:
        # A token is in the nucleus if the more likely ones together do not reach top_p.
        before = ops.cumsum(probabilities, axis=-1) - probabilities
        # The first token is always in the nucleus, despite rounding.
        before = ops.where(ops.arange(shape(logits)[1]) == 0, 0.0, before)
        probabilities = ops.where(before < top_p, probabilities, 0.0)
    cumulative = ops.cumsum(probabilities, axis=-1)
    total = cumulative[:, -1:]
    places = _count(cumulative <= uniforms * total)
    # Rounding can make `uniforms * total` equal `total`. If so, the last possible token
    # is drawn.
    places = ops.minimum(places, _count(cumulative < total))
    if tokens is None:
        return places
    return gather_each(tokens, places, axis=1)


def _count(condition):
    return ops.sum(ops.cast(condition, "int32"), axis=-1, keepdims=True)


def _append(state, tokens, log_probs, index, ids):
    """Appends one drawn token, `tokens[i, j]`, to each sample."""
    tokens = ops.where(state.ended, ids.pad, tokens)
    here = ops.arange(shape(state.sequences)[2], dtype="int32") == index
    sequences = ops.where(here, tokens[:, :, None], state.sequences)
    at_limit = index + 1 >= state.max_lengths
    ended = ops.logical_or(state.ended, tokens == ids.end)
    ended = ops.logical_or(ended, at_limit[:, None])
    return state._replace(
        sequences=sequences,
        log_probs=state.log_probs + ops.where(state.ended, 0.0, log_probs),
        last_ids=tokens,
        ended=ended,
        done=ops.all(ended, axis=1),
    )
