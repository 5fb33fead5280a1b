"""Beam search over any step function and any cache (section 6.1)."""

import numbers
from typing import Any
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_transformer.decoding.deprecated import accept_old_arguments
from keras_transformer.decoding.loop import StepFunction
from keras_transformer.decoding.loop import decode_loop
from keras_transformer.decoding.loop import has_dynamic_shapes
from keras_transformer.decoding.loop import known_vocabulary_size
from keras_transformer.decoding.loop import resolve_lengths
from keras_transformer.decoding.options import BeamSearch
from keras_transformer.decoding.options import SpecialIds
from keras_transformer.decoding.top_k import top_k

NEG_INF = float("-inf")
# Vocabulary size from which one softmax is faster than exponentials and their sum.
SOFTMAX_MIN_SIZE = 1024


@accept_old_arguments
def beam_search(
    decoder,
    cache,
    context,
    batch_size,
    max_length,
    search=BeamSearch(),
    ids=SpecialIds(),
    n_best=1,
    vocabulary_size=None,
    buffer_length=None,
    drop_finished="auto",
):
    """Runs beam search and returns the highest-scoring sequences.

    Each step keeps the `beam_size` most probable continuations of a sentence's alive
    hypotheses. Those that end leave the beam with score `log-probability /
    penalty(length)`. If none has ended at the maximum length, the unfinished ones are
    returned, scored in the same way. With `beam_size=1` this is greedy search.

    A sentence is done when no alive hypothesis can beat its `n_best`-th best finished
    one. A log-probability only falls and the penalty only grows, so `log-probability /
    penalty(max_length)` bounds every continuation. With `patience` it is also done
    once enough hypotheses have finished.

    Args:
        decoder: `StepFunction`, an object with its attributes, or a plain step
            function.
        cache: Nest of tensors whose leading axis is batch * beam_size (any multiple of
            batch if `reorder` leaves them in place).
        context: Nest of tensors whose leading axis is batch; row i serves rows i *
            beam_size to (i + 1) * beam_size - 1. It is never copied per hypothesis.
        batch_size: Int or scalar tensor.
        max_length: Maximum number of tokens to generate, including the end id, scalar
            or `[batch]`. A sentence with 0 gets the empty sequence with score 0.
        search: `BeamSearch`; its `extra_length` is not used here.
        ids: `SpecialIds`. All but the end id are never generated; log-probabilities
            are still relative to the model's whole vocabulary.
        n_best: Hypotheses to return per sentence, at most `beam_size`. If a scalar
            int32 tensor, `beam_size` are returned; only the first `n_best` are valid.
        vocabulary_size: Ids from this one are never generated, for an output matrix
            with more rows than the tokenizer has ids. If `None`, no id is excluded.
        buffer_length: Length of the result. If `None`, the largest `max_length`.
            Required under `jax.jit` if `max_length` is a tensor.
        drop_finished: Whether finished sentences leave the batch: `True`, `False`, or
            `"auto"` (on all backends but JAX). Pass `False` for XLA.

    Returns:
        `(sequences, scores)`: int32 `[batch, n_best, buffer_length]`, including the
        end id, then padding; float32 `[batch, n_best]`, highest first. Slots without a
        hypothesis have score minus infinity and contain only padding.

    Raises:
        ValueError: If `n_best` is below 1 or above `beam_size`, or the end id is
            another special id, too.
    """
    decoder = StepFunction.of(decoder)
    beam_size = search.beam_size
    if _is_number(n_best) and not 1 <= n_best <= beam_size:
        raise ValueError(
            "`n_best` must be between 1 and `beam_size`. "
            f"Received: beam_size={beam_size}, n_best={n_best}."
        )
    forbidden = ids.never_generated()
    max_lengths, buffer_length = resolve_lengths(max_length, buffer_length, batch_size)

    def step(state, cache, context, index):
        last_ids = ops.reshape(state.last_ids, (-1, 1))
        logits, cache = decoder.step(last_ids, cache, context, index)
        best = _best_tokens(
            logits,
            beam_size,
            vocabulary_size,
            forbidden,
            decoder.gives_log_probs,
            has_dynamic_shapes(drop_finished),
        )
        state, parents = _expand_beams(state, *best, index, search, ids.end, n_best)
        if beam_size > 1:
            cache = decoder.reorder(cache, parents)
        return state, cache

    num_places = n_best if _is_number(n_best) else beam_size
    shape = (batch_size, beam_size, buffer_length)
    state = _initial_state(max_lengths, shape, num_places, ids)
    state = decode_loop(
        step, state, cache, context, buffer_length, drop_finished, decoder.compact
    )
    found = state.finished_scores > NEG_INF
    sequences = ops.where(found[:, :, None], state.finished_sequences, ids.pad)
    return sequences, state.finished_scores


def _is_number(n_best):
    return isinstance(n_best, numbers.Integral)


class BeamState(NamedTuple):
    """Hypotheses of all sentences."""

    alive_sequences: Any  # int32 [batch, beam_size, buffer_length]
    alive_log_probs: Any  # float32 [batch, beam_size], minus infinity: empty slot
    last_ids: Any  # int32 [batch, beam_size]
    finished_sequences: Any  # int32 [batch, num_places, buffer_length]
    finished_scores: Any  # float32 [batch, num_places], highest first
    num_finished: Any  # int32 [batch]
    max_lengths: Any  # int32 [batch]
    done: Any  # bool [batch]


def _initial_state(max_lengths, shape, num_places, ids):
    batch_size, beam_size, buffer_length = shape
    # With more than one slot alive, the first step would find each token repeatedly.
    first = ops.broadcast_to(ops.arange(beam_size) == 0, (batch_size, beam_size))
    done = max_lengths <= 0
    empty = ops.logical_and(done[:, None], first[:, :num_places])
    alive = ops.logical_and(first, ops.logical_not(done[:, None]))
    places = (batch_size, num_places, buffer_length)
    return BeamState(
        alive_sequences=ops.full(shape, ids.pad, dtype="int32"),
        alive_log_probs=_zero_where(alive),
        last_ids=ops.full((batch_size, beam_size), ids.start, dtype="int32"),
        finished_sequences=ops.full(places, ids.pad, dtype="int32"),
        finished_scores=_zero_where(empty),
        num_finished=ops.zeros_like(max_lengths),
        max_lengths=max_lengths,
        done=done,
    )


def _zero_where(condition):
    """float32: 0 where `condition` is true, else minus infinity."""
    return ops.cast(ops.where(condition, 0.0, NEG_INF), "float32")


def _best_tokens(
    logits, num_tokens, vocabulary_size, forbidden, gives_log_probs, one_by_one
):
    """Returns log-probabilities and ids of each row's best tokens.

    An array as large as the logits costs as much as a layer of a small model. So only
    the best tokens are normalized, by one number per row.

    Args:
        logits: `[rows, vocabulary]` or `[rows, 1, vocabulary]`.
        num_tokens: Minimum number of tokens per row.
        vocabulary_size: Ids from this one are excluded. If `None`, none is.
        forbidden: Ids that get minus infinity.
        gives_log_probs: Whether the logits are log-probabilities.
        one_by_one: Whether operations are not fused by XLA; one softmax is then the
            fastest way to normalize.

    Returns:
        float32 and int32 `[rows, k]`.
    """
    logits = ops.cast(logits, "float32")
    logits = ops.reshape(logits, (-1, logits.shape[-1]))  # [rows, vocabulary]
    size = known_vocabulary_size(logits)
    allowed = logits
    if vocabulary_size is not None and vocabulary_size < size:
        size = vocabulary_size
        allowed = logits[:, :size]
    # Take extra candidates so that enough remain after forbidden ids are removed.
    best, tokens = top_k(allowed, min(num_tokens + len(forbidden), size))
    log_probs = best
    if not gives_log_probs:
        whole = allowed is logits
        if whole and one_by_one and size >= SOFTMAX_MIN_SIZE:
            log_probs = _normalize_by_first(best, tokens, logits)
        else:
            log_probs = _normalize_by_largest(best, logits, whole)
    # Rounding must not give a probability above 1: the stopping bound relies on it.
    log_probs = ops.minimum(log_probs, 0.0)
    is_forbidden = ops.any(tokens[:, :, None] == np.array(forbidden, "int32"), axis=2)
    return ops.where(is_forbidden, NEG_INF, log_probs), tokens


def _normalize_by_first(best, tokens, logits):
    """Returns log-probabilities from the probability of each row's first token."""
    probabilities = ops.softmax(logits, axis=-1)
    num_rows, size = ops.shape(logits)
    places = ops.arange(num_rows, dtype="int32") * size + tokens[:, 0]
    first = ops.take(ops.reshape(probabilities, (-1,)), places, axis=0)
    # TensorFlow's vectorized log rounds the scalar tail of an array differently. Rows
    # of 16 have no tail.
    first = ops.log(ops.broadcast_to(first[:, None], (num_rows, 16)))[:, :1]
    return best - best[:, :1] + first


def _normalize_by_largest(best, logits, whole):
    """Returns log-probabilities; `whole` if `best` contains the largest logit."""
    # Not a slice: XLA sorts everything if more than one slice reads a top-k.
    largest = ops.max(best if whole else logits, axis=-1, keepdims=True)
    total = ops.sum(ops.exp(logits - largest), axis=-1, keepdims=True)
    return best - largest - ops.log(total)


def _expand_beams(state, log_probs, tokens, index, search, end_id, n_best):
    """Expands every sentence's beam by one token.

    Args:
        state: `BeamState` with hypotheses of `index` tokens.
        log_probs: float32 `[batch * beam_size, k]`, from `_best_tokens`.
        tokens: int32 `[batch * beam_size, k]`.

    Returns:
        `(state, parents)`: hypotheses of `index + 1` tokens, and the row that each
        continues, int32 `[batch * beam_size]`.
    """
    log_probs, tokens, parents = _continue(state, log_probs, tokens)
    sequences = _select(state.alive_sequences, parents, search.beam_size)
    here = ops.arange(ops.shape(sequences)[2], dtype="int32") == index
    sequences = ops.where(here, tokens[:, :, None], sequences)

    length = index + 1
    ended = tokens == end_id
    finished = ops.logical_and(ended, log_probs > NEG_INF)
    finished_sequences, finished_scores = _update_finished(
        state, sequences, log_probs, ended, finished, length, search
    )
    alive = ops.where(ended, NEG_INF, log_probs)
    num_finished = state.num_finished
    if search.patience is not None:
        num_finished = num_finished + ops.sum(ops.cast(finished, "int32"), axis=1)
    state = state._replace(
        alive_sequences=sequences,
        last_ids=tokens,
        finished_sequences=finished_sequences,
        finished_scores=finished_scores,
        num_finished=num_finished,
    )
    done = _is_done(state, alive, length, search, n_best)
    # Without alive hypotheses, later steps cannot change a finished sentence.
    alive = ops.where(done[:, None], NEG_INF, alive)
    return state._replace(alive_log_probs=alive, done=done), parents


def _continue(state, log_probs, tokens):
    """Selects the best continuations of each sentence, `[batch, beam_size]`."""
    beam_size, num_tokens = state.last_ids.shape[1], tokens.shape[1]
    first_row = ops.arange(ops.shape(state.done)[0], dtype="int32")[:, None] * beam_size
    candidates = ops.reshape(log_probs, (-1, beam_size, num_tokens))
    candidates = candidates + state.alive_log_probs[:, :, None]
    candidates = ops.reshape(candidates, (-1, beam_size * num_tokens))
    log_probs, places = ops.top_k(candidates, beam_size)
    places = ops.cast(places, "int32")
    parents = ops.reshape(first_row + places // num_tokens, (-1,))
    tokens = ops.take(
        ops.reshape(tokens, (-1,)), first_row * num_tokens + places, axis=0
    )
    return log_probs, tokens, parents


def _update_finished(state, sequences, log_probs, ended, finished, length, search):
    """Merges newly finished hypotheses into the best finished ones."""
    num_places = state.finished_scores.shape[1]
    at_limit = length >= state.max_lengths
    # A hypothesis cut off at the limit counts only if the sentence has no other.
    none_ended = ops.logical_not(ops.any(finished, axis=1))
    none_ended = ops.logical_and(none_ended, state.finished_scores[:, 0] == NEG_INF)
    cut_off = ops.logical_and(at_limit, none_ended)[:, None]
    scores = ops.where(
        ops.logical_or(ended, cut_off), log_probs / search.penalty(length), NEG_INF
    )
    scores = ops.concatenate([state.finished_scores, scores], axis=1)
    best_scores, kept = ops.top_k(scores, num_places)
    batch = ops.arange(ops.shape(state.done)[0], dtype="int32")[:, None]
    rows = batch * (num_places + search.beam_size) + ops.cast(kept, "int32")
    best_sequences = _select(
        ops.concatenate([state.finished_sequences, sequences], axis=1),
        ops.reshape(rows, (-1,)),
        num_places,
    )
    return best_sequences, best_scores


def _is_done(state, alive_log_probs, length, search, n_best):
    """Returns whether no alive hypothesis can change the result, bool `[batch]`."""
    bound = ops.max(alive_log_probs, axis=1) / search.penalty(state.max_lengths)
    last = state.finished_scores[:, -1]
    if not _is_number(n_best):
        last = ops.take(state.finished_scores, n_best - 1, axis=1)
    done = ops.logical_or(length >= state.max_lengths, bound <= last)
    if search.patience is not None:
        threshold = int(min(search.patience * search.beam_size, 2**30) + 0.5)
        larger = max if _is_number(n_best) else ops.maximum
        done = ops.logical_or(done, state.num_finished >= larger(threshold, n_best))
    return ops.logical_or(state.done, done)


def _select(sequences, rows, num_rows):
    """Takes rows, numbered over all sentences, to `[batch, num_rows, length]`."""
    length = ops.shape(sequences)[2]
    sequences = ops.take(ops.reshape(sequences, (-1, length)), rows, axis=0)
    return ops.reshape(sequences, (-1, num_rows, length))
