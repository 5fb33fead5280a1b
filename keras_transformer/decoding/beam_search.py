"""Beam search over any step function and any cache (paper section 6.1)."""

import numbers
from typing import Any
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_transformer.decoding.length_penalty import get_length_penalty
from keras_transformer.decoding.loop import check_ids
from keras_transformer.decoding.loop import decode_loop
from keras_transformer.decoding.loop import has_dynamic_shapes
from keras_transformer.decoding.loop import known_vocabulary_size
from keras_transformer.decoding.loop import resolve_lengths
from keras_transformer.decoding.loop import take_rows
from keras_transformer.decoding.top_k import top_k

NEVER = float("-inf")
# Logits of a row from which on one softmax takes less than exponentials and their sum.
SOFTMAX_PAYS = 1024


def beam_search(
    next_token_logits,
    cache,
    context,
    batch_size,
    beam_size,
    max_length,
    start_id=2,
    end_id=3,
    pad_id=0,
    forbidden_ids=(1,),
    length_penalty=0.6,
    length_penalty_kind="gnmt",
    n_best=1,
    vocabulary_size=None,
    buffer_length=None,
    compaction="auto",
    reorder_cache=take_rows,
    normalized=False,
    settle_cache=None,
    patience=None,
):
    """The sequences of highest score that a beam finds, in one compiled graph.

    Each step keeps the `beam_size` most probable of all continuations of a sentence's
    living hypotheses. Those that end leave the beam with score `log-probability /
    penalty(length)`; the others live on. A sentence ends when no living hypothesis
    can still beat its `n_best`-th best finished one: a log-probability only falls and
    the penalty only grows, so `log-probability / penalty(longest length allowed)`
    bounds whatever may come of it. With `patience` it ends sooner, once enough have
    finished, whatever may come. With `beam_size=1` this is greedy search.

    Where nothing has ended at the longest length allowed, the unfinished hypotheses
    are returned, scored in the same way.

    Args:
        next_token_logits: function `(ids, cache, context, index) -> (logits, cache)`
            with ids int32 [batch * beam_size, 1], the scalar int32 position `index`
            of these ids, and logits [batch * beam_size, vocabulary] or
            [batch * beam_size, 1, vocabulary].
        cache: nest of tensors whose leading axis is batch * beam_size; reordered as
            hypotheses are, by `reorder_cache`.
        context: nest of tensors whose leading axis is batch; row i serves rows
            i * beam_size to (i + 1) * beam_size - 1 of the cache. Never copied for
            each beam. As finished sentences leave the batch, both shrink.
        batch_size: int or scalar tensor.
        beam_size: int, living hypotheses for each sentence.
        max_length: the most tokens to generate, the end id counted: scalar, or
            [batch] for a limit of each sentence. A sentence with limit 0 gets the
            empty sequence with score 0.
        start_id: int, the first input; never generated.
        end_id: int, the last token of a finished hypothesis.
        pad_id: int, fills the sequences' ends; never generated.
        forbidden_ids: more ids that are never generated, by default the unknown id.
            Log-probabilities stay those of the model's whole vocabulary.
        length_penalty: float alpha, at least 0.
        length_penalty_kind: "gnmt" or "power" (see `length_penalty.py`).
        n_best: int, hypotheses to return for each sentence, at most `beam_size`; or a
            scalar int32 tensor, from 1 to `beam_size`: the search ends as it would
            for that number, and returns `beam_size` hypotheses, the first so many of
            them the same.
        vocabulary_size: int or None; ids from this one on are never generated, for
            an output matrix with more rows than the tokenizer has ids.
        buffer_length: int or None, length of the result, at least the largest
            `max_length` (the default). Needed under `jax.jit` if `max_length` is a
            tensor.
        compaction: let finished sentences leave the batch: True, False, or "auto"
            (all backends but JAX). Pass False for XLA.
        reorder_cache: function `(cache, parents) -> cache`; parents int32 [batch *
            beam_size] is the row that each row goes on from. With one that leaves
            tensors where they are, these may have any multiple of batch as leading
            axis.
        normalized: whether `next_token_logits` gives log-probabilities, to be added
            up as they are. An id of minus infinity is never generated.
        settle_cache: function `cache -> cache` for every `decode_loop.SETTLE_STEPS`
            steps, with compaction.
        patience: float above 0 or None. A sentence ends as well when `patience *
            beam_size` of its hypotheses, rounded, and at least `n_best`, have finished
            (Kasai et al., 2022, "A Call for Clarity in Beam Search"; 1 is the rule of
            fairseq and CTranslate2). None: never by their number.

    Returns:
        `(sequences, scores)`: int32 [batch, n_best, buffer_length], end id included,
        then `pad_id`; float32 [batch, n_best], highest first. Slots for which no
        hypothesis was found have score minus infinity and hold `pad_id` only. Where
        `n_best` is a tensor, `beam_size` stands for it.

    Raises:
        ValueError: sizes below 1, `n_best` above `beam_size`, a negative
            `length_penalty` or an unknown kind, a `patience` that is not above 0, an
            end id that is forbidden.
    """
    fixed = _is_number(n_best)
    if beam_size < 1 or (fixed and not 1 <= n_best <= beam_size):
        raise ValueError(
            "`beam_size` must be at least 1 and `n_best` between 1 and `beam_size`. "
            f"Received: beam_size={beam_size}, n_best={n_best}."
        )
    enough = _enough(patience, beam_size, n_best)
    penalty = get_length_penalty(length_penalty_kind, length_penalty)
    forbidden_ids = check_ids(start_id, end_id, pad_id, forbidden_ids)
    max_lengths, buffer_length = resolve_lengths(max_length, buffer_length, batch_size)

    def step(state, cache, context, index):
        ids = ops.reshape(state.last_ids, (-1, 1))
        logits, cache = next_token_logits(ids, cache, context, index)
        log_probs, tokens = _best_tokens(
            *(logits, beam_size, vocabulary_size, forbidden_ids, normalized),
            has_dynamic_shapes(compaction),
        )
        state, parents = _grow(
            state, log_probs, tokens, index, end_id, penalty, n_best, enough
        )
        if beam_size > 1:
            cache = reorder_cache(cache, parents)
        return state, cache

    num_places = n_best if fixed else beam_size
    state = _initial_state(
        max_lengths, buffer_length, batch_size, beam_size, num_places, start_id, pad_id
    )
    state = decode_loop(
        step, state, cache, context, buffer_length, compaction, settle_cache
    )
    found = state.best_scores > NEVER
    sequences = ops.where(found[:, :, None], state.best_sequences, pad_id)
    return sequences, state.best_scores


def _enough(patience, beam_size, n_best):
    """How many finished hypotheses end a sentence; None: no number of them."""
    if patience is None:
        return None
    if not patience > 0:
        raise ValueError(f"`patience` must be above 0. Received: patience={patience}.")
    enough = int(min(patience * beam_size, 2**30) + 0.5)
    return max(enough, n_best) if _is_number(n_best) else ops.maximum(enough, n_best)


def _is_number(n_best):
    return isinstance(n_best, numbers.Integral)


class _BeamState(NamedTuple):
    living_sequences: Any  # int32 [batch, beam_size, buffer_length]
    living_log_probs: Any  # float32 [batch, beam_size], minus infinity: slot is empty
    last_ids: Any  # int32 [batch, beam_size]
    best_sequences: Any  # int32 [batch, num_places, buffer_length]
    best_scores: Any  # float32 [batch, num_places], highest first
    num_finished: Any  # int32 [batch]
    max_lengths: Any  # int32 [batch]
    done: Any  # bool [batch]


def _initial_state(
    max_lengths, buffer_length, batch_size, beam_size, num_places, start_id, pad_id
):
    # Only the first slot lives, or the first step would find each token beam_size
    # times.
    first = ops.broadcast_to(ops.arange(beam_size) == 0, (batch_size, beam_size))
    done = max_lengths <= 0
    empty = ops.logical_and(done[:, None], first[:, :num_places])
    return _BeamState(
        living_sequences=ops.full(
            (batch_size, beam_size, buffer_length), pad_id, dtype="int32"
        ),
        living_log_probs=_zero_where(
            ops.logical_and(first, ops.logical_not(done[:, None]))
        ),
        last_ids=ops.full((batch_size, beam_size), start_id, dtype="int32"),
        best_sequences=ops.full(
            (batch_size, num_places, buffer_length), pad_id, dtype="int32"
        ),
        best_scores=_zero_where(empty),
        num_finished=ops.zeros_like(max_lengths),
        max_lengths=max_lengths,
        done=done,
    )


def _zero_where(condition):
    """float32: 0 where `condition` holds, else minus infinity."""
    return ops.cast(ops.where(condition, 0.0, NEVER), "float32")


def _best_tokens(
    logits, num_tokens, vocabulary_size, forbidden_ids, normalized, one_by_one
):
    """Log-probabilities and ids of each row's best tokens, `num_tokens` or more.

    Whatever is as large as the logits costs as much as a layer of a small model: none
    of it is written out but what the normaliser needs, one number for each row.

    Args:
        one_by_one: Whether operations run as they are, rather than joined by XLA; a
            softmax is then the fastest way to a normaliser.

    Returns:
        float32 and int32 [rows, k]; forbidden ids have minus infinity.
    """
    logits = ops.cast(logits, "float32")
    logits = ops.reshape(logits, (-1, logits.shape[-1]))  # [rows, vocabulary]
    size = known_vocabulary_size(logits)
    allowed = logits
    if vocabulary_size is not None and vocabulary_size < size:
        size = vocabulary_size
        allowed = logits[:, :size]
    # So many of the best that enough are left without the forbidden ones.
    best, tokens = top_k(allowed, min(num_tokens + len(forbidden_ids), size))
    log_probs = best
    if not normalized:
        whole = allowed is logits
        if whole and one_by_one and size >= SOFTMAX_PAYS:
            log_probs = _normalized_by_first(best, tokens, logits)
        else:
            log_probs = _normalized_by_largest(best, logits, whole)
    # Rounding must not make a probability above 1: the stopping bound relies on it.
    log_probs = ops.minimum(log_probs, 0.0)
    forbidden = ops.any(tokens[:, :, None] == np.array(forbidden_ids, "int32"), axis=2)
    return ops.where(forbidden, NEVER, log_probs), tokens


def _normalized_by_first(best, tokens, logits):
    """Log-probabilities of `best`, from the probability of the first of each row."""
    probabilities = ops.softmax(logits, axis=-1)
    num_rows, size = ops.shape(logits)
    places = ops.arange(num_rows, dtype="int32") * size + tokens[:, 0]
    first = ops.take(ops.reshape(probabilities, (-1,)), places, axis=0)
    # TensorFlow computes an array's last few numbers one by one, to another last
    # digit: of rows of 16 none is among them, whatever rows are beside.
    first = ops.log(ops.broadcast_to(first[:, None], (num_rows, 16)))[:, :1]
    return best - best[:, :1] + first


def _normalized_by_largest(best, logits, whole):
    """Log-probabilities of `best`; `whole`: the best of all logits are among them."""
    # Not a slice: XLA sorts it all where a top-k is read by more slices than one.
    largest = ops.max(best if whole else logits, axis=-1, keepdims=True)
    total = ops.sum(ops.exp(logits - largest), axis=-1, keepdims=True)
    return best - largest - ops.log(total)


def _grow(state, log_probs, tokens, index, end_id, penalty, n_best, enough=None):
    """One step of every sentence's beam.

    Args:
        state: `_BeamState` with hypotheses of `index` tokens.
        log_probs: float32 [batch * beam_size, k], of each hypothesis's best tokens.
        tokens: int32 [batch * beam_size, k].
        n_best: As `beam_search` has it.
        enough: Finished hypotheses that end a sentence; None: no number does.

    Returns:
        `(state, parents)`: hypotheses of `index + 1` tokens, and the row of the old
        beam that each grew from, int32 [batch * beam_size].
    """
    beam_size = state.last_ids.shape[1]
    num_tokens = tokens.shape[1]
    num_best = state.best_scores.shape[1]
    first_row = ops.arange(ops.shape(state.done)[0], dtype="int32")[:, None] * beam_size

    candidates = ops.reshape(log_probs, (-1, beam_size, num_tokens))
    candidates = candidates + state.living_log_probs[:, :, None]
    candidates = ops.reshape(candidates, (-1, beam_size * num_tokens))
    log_probs, places = ops.top_k(candidates, beam_size)  # [batch, beam_size]
    places = ops.cast(places, "int32")
    parents = ops.reshape(first_row + places // num_tokens, (-1,))
    tokens = ops.take(
        ops.reshape(tokens, (-1,)), first_row * num_tokens + places, axis=0
    )
    sequences = _select(state.living_sequences, parents, beam_size)
    here = ops.arange(ops.shape(sequences)[2], dtype="int32") == index
    sequences = ops.where(here, tokens[:, :, None], sequences)

    length = index + 1
    ended = tokens == end_id
    at_limit = length >= state.max_lengths
    finished = ops.logical_and(ended, log_probs > NEVER)
    # A hypothesis cut off at the limit counts only where the sentence has no other.
    none_ended = ops.logical_not(ops.any(finished, axis=1))
    none_ended = ops.logical_and(none_ended, state.best_scores[:, 0] == NEVER)
    cut_off = ops.logical_and(at_limit, none_ended)[:, None]
    scores = ops.where(
        ops.logical_or(ended, cut_off), log_probs / penalty(length), NEVER
    )
    scores = ops.concatenate([state.best_scores, scores], axis=1)
    best_scores, kept = ops.top_k(scores, num_best)
    kept = ops.cast(kept, "int32")
    pool_size = num_best + beam_size
    best_sequences = _select(
        ops.concatenate([state.best_sequences, sequences], axis=1),
        ops.reshape(first_row // beam_size * pool_size + kept, (-1,)),
        num_best,
    )

    living = ops.where(ended, NEVER, log_probs)
    bound = ops.max(living, axis=1) / penalty(state.max_lengths)
    last = best_scores[:, -1]
    if not _is_number(n_best):
        last = ops.take(best_scores, n_best - 1, axis=1)
    done = ops.logical_or(at_limit, bound <= last)
    num_finished = state.num_finished
    if enough is not None:
        num_finished = num_finished + ops.sum(ops.cast(finished, "int32"), axis=1)
        done = ops.logical_or(done, num_finished >= enough)
    done = ops.logical_or(state.done, done)
    state = _BeamState(
        living_sequences=sequences,
        # With no living hypothesis, later steps cannot change a finished sentence.
        living_log_probs=ops.where(done[:, None], NEVER, living),
        last_ids=tokens,
        best_sequences=best_sequences,
        best_scores=best_scores,
        num_finished=num_finished,
        max_lengths=state.max_lengths,
        done=done,
    )
    return state, parents


def _select(sequences, rows, num_rows):
    """[batch, num_rows, length] out of [batch, n, length]; rows count through both."""
    length = ops.shape(sequences)[2]
    sequences = ops.take(ops.reshape(sequences, (-1, length)), rows, axis=0)
    return ops.reshape(sequences, (-1, num_rows, length))
