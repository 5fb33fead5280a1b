"""Sampling: temperature, top-k and nucleus, over any step function and any cache."""

from typing import Any
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.decoding.loop import check_ids
from keras_transformer.decoding.loop import decode_loop
from keras_transformer.decoding.loop import known_vocabulary_size
from keras_transformer.decoding.loop import resolve_lengths
from keras_transformer.decoding.top_k import top_k as best_of


def sample(
    next_token_logits,
    cache,
    context,
    batch_size,
    num_samples,
    max_length,
    start_id=2,
    end_id=3,
    pad_id=0,
    forbidden_ids=(1,),
    temperature=1.0,
    top_k=None,
    top_p=None,
    seed=None,
    vocabulary_size=None,
    buffer_length=None,
    compaction="auto",
    normalized=False,
    settle_cache=None,
):
    """Sequences drawn token by token from the model's distribution.

    The arguments that are not listed here are those of `beam_search`.

    Args:
        cache: nest of tensors whose leading axis is batch * num_samples.
        num_samples: int, independent samples for each sentence.
        temperature: float above 0 that logits are divided by; below 1 makes probable
            tokens more probable.
        top_k: int or None, draw from the k most probable tokens only.
        top_p: float in (0, 1] or None, draw from the nucleus only: the fewest most
            probable tokens that together have at least this probability (after
            temperature and `top_k`; Holtzman et al. 2020).
        seed: int, `keras.random.SeedGenerator` or None. With an int, the same samples
            each time, also with and without compaction.

    Returns:
        `(sequences, scores)`: int32 [batch, num_samples, buffer_length], end id
        included, then `pad_id`, in the order drawn; float32 [batch, num_samples], the
        model's own log-probability of each (temperature 1, whole vocabulary).

    Raises:
        ValueError: an argument outside its range.
    """
    _check(num_samples, temperature, top_k, top_p)
    forbidden_ids = check_ids(start_id, end_id, pad_id, forbidden_ids)
    max_lengths, buffer_length = resolve_lengths(max_length, buffer_length, batch_size)

    def step(state, cache, context, index):
        ids = ops.reshape(state.last_ids, (-1, 1))
        logits, cache = next_token_logits(ids, cache, context, index)
        logits = ops.cast(logits, "float32")
        logits = ops.reshape(logits, (-1, logits.shape[-1]))  # [rows, vocabulary]
        bias = _forbidden_bias(logits, vocabulary_size, forbidden_ids)
        tokens = _draw(
            (logits + bias) / temperature,
            ops.reshape(ops.take(state.uniforms, index, axis=2), (-1, 1)),
            top_k,
            top_p,
        )
        log_probs = ops.take_along_axis(logits, tokens, axis=1)
        if not normalized:
            log_probs = log_probs - ops.logsumexp(logits, axis=-1, keepdims=True)
        tokens = ops.reshape(tokens, (-1, num_samples))
        log_probs = ops.reshape(log_probs, (-1, num_samples))
        return _append(state, tokens, log_probs, index, end_id, pad_id), cache

    shape = (batch_size, num_samples)
    done = max_lengths <= 0
    state = _SampleState(
        sequences=ops.full((*shape, buffer_length), pad_id, dtype="int32"),
        log_probs=ops.zeros(shape, dtype="float32"),
        last_ids=ops.full(shape, start_id, dtype="int32"),
        ended=ops.broadcast_to(done[:, None], shape),
        # All drawn at once, one number for each token: what a sentence gets does not
        # depend on when others leave the batch.
        uniforms=keras.random.uniform(
            (*shape, buffer_length), dtype="float32", seed=seed
        ),
        max_lengths=max_lengths,
        done=done,
    )
    state = decode_loop(
        step, state, cache, context, buffer_length, compaction, settle_cache
    )
    return state.sequences, state.log_probs


class _SampleState(NamedTuple):
    sequences: Any  # int32 [batch, num_samples, buffer_length]
    log_probs: Any  # float32 [batch, num_samples]
    last_ids: Any  # int32 [batch, num_samples]
    ended: Any  # bool [batch, num_samples]
    uniforms: Any  # float32 [batch, num_samples, buffer_length], in [0, 1)
    max_lengths: Any  # int32 [batch]
    done: Any  # bool [batch]


def _forbidden_bias(logits, vocabulary_size, forbidden_ids):
    """float32 [vocabulary]: minus infinity for ids never to be drawn, else 0."""
    bias = np.zeros(known_vocabulary_size(logits), "float32")
    bias[vocabulary_size or bias.size :] = -np.inf
    bias[[i for i in forbidden_ids if i < bias.size]] = -np.inf
    return bias


def _check(num_samples, temperature, top_k, top_p):
    if num_samples < 1:
        raise ValueError(
            f"`num_samples` must be at least 1. Received: num_samples={num_samples}."
        )
    if not temperature > 0:
        raise ValueError(
            f"`temperature` must be above 0. Received: temperature={temperature}. For "
            "the most probable token at each step pass top_k=1."
        )
    if top_k is not None and top_k < 1:
        raise ValueError(f"`top_k` must be at least 1. Received: top_k={top_k}.")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(
            f"`top_p` must be above 0 and at most 1. Received: top_p={top_p}."
        )


def _draw(logits, uniforms, top_k, top_p):
    """One id for each row, int32 [rows, 1], by inverting the cumulative distribution.

    Args:
        logits: float32 [rows, vocabulary], minus infinity for what is forbidden.
        uniforms: float32 [rows, 1] in [0, 1).
    """
    tokens = None
    if top_k is not None or top_p is not None:
        size = logits.shape[-1]
        num_kept = size if top_k is None else min(top_k, size)
        logits, tokens = best_of(logits, num_kept)
        if num_kept == 1:
            return tokens
    probabilities = ops.softmax(logits, axis=-1)
    if top_p is not None:
        # A token is in the nucleus if those before it don't reach top_p already.
        before = ops.cumsum(probabilities, axis=-1) - probabilities
        # The first token always is, whatever rounding makes of the difference.
        before = ops.where(ops.arange(ops.shape(logits)[1]) == 0, 0.0, before)
        probabilities = ops.where(before < top_p, probabilities, 0.0)
    cumulative = ops.cumsum(probabilities, axis=-1)
    total = cumulative[:, -1:]
    places = _count(cumulative <= uniforms * total)
    # Rounding may carry the product up to the total: stay on the last possible token.
    places = ops.minimum(places, _count(cumulative < total))
    if tokens is None:
        return places
    return ops.take_along_axis(tokens, places, axis=1)


def _count(condition):
    return ops.sum(ops.cast(condition, "int32"), axis=-1, keepdims=True)


def _append(state, tokens, log_probs, index, end_id, pad_id):
    tokens = ops.where(state.ended, pad_id, tokens)
    here = ops.arange(ops.shape(state.sequences)[2], dtype="int32") == index
    sequences = ops.where(here, tokens[:, :, None], state.sequences)
    at_limit = index + 1 >= state.max_lengths
    ended = ops.logical_or(state.ended, tokens == end_id)
    ended = ops.logical_or(ended, at_limit[:, None])
    return state._replace(
        sequences=sequences,
        log_probs=state.log_probs + ops.where(state.ended, 0.0, log_probs),
        last_ids=tokens,
        ended=ended,
        done=ops.all(ended, axis=1),
    )
