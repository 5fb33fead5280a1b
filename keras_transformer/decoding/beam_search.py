"""Beam search with any step function and any cache (section 6.1 of the paper)."""

import dataclasses
import numbers
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.decoding.loop import (
    StepDecoder,
    decode_loop,
    has_dynamic_shapes,
    next_logits,
    resolve_lengths,
)
from keras_transformer.decoding.options import BeamSearch, SpecialIds
from keras_transformer.decoding.required import Progress, choose
from keras_transformer.decoding.top_k import top_k
from keras_transformer.numerics.indexing import gather, gather_each, shape
from keras_transformer.numerics.softmax import best_log_probs

NEG_INF = float("-inf")


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
    num_results=None,
    required_ids=None,
    word_edges=None,
    first_ids=None,
    is_forced=None,
):
    """Runs beam search and returns the highest-scoring sequences.

    Each step extends a sentence's alive (unfinished) hypotheses by one token and keeps
    the `beam_size` most probable unfinished continuations. A continuation that ends in
    the end id becomes a finished hypothesis if it is among the `beam_size` most
    probable continuations, finished or not. fairseq and CTranslate2 choose the next
    hypotheses from the `2 * beam_size` most probable continuations. The result is the
    same, because at most `beam_size` of these end in the end id, one per hypothesis.

    The score of a hypothesis is `log-probability / penalty(length)`. If no hypothesis
    has finished at the maximum length, the unfinished ones are returned, scored in the
    same way. `beam_size=1` is greedy search.

    A sentence is done when no alive hypothesis can beat the sentence's `n_best`-th best
    finished one. As a hypothesis grows, its log-probability never increases, and its
    penalty never decreases. So its `log-probability / penalty(max_length)` limits the
    scores of its continuations. With `patience`, a sentence is also done once
    `max(n_best, patience * beam_size)` hypotheses have finished. Without a length
    penalty, the best of these must also beat all alive hypotheses, as in CTranslate2,
    so that `patience` never loses the best one.

    Args:
        decoder: `StepDecoder`, an object with its attributes, or a plain step function.
        cache: Nest of tensors whose leading axis is batch * beam_size, or another
            multiple of batch if `decoder.reorder` accepts it.
        context: Nest of tensors that steps read but do not change, such as an encoder's
            output. Their leading axis is batch: row i is shared by the hypotheses in
            the cache's rows i * beam_size to (i + 1) * beam_size - 1.
        batch_size: Number of sentences, an int or a scalar tensor.
        max_length: Maximum number of tokens to generate, including the end id: one
            number for all sentences, or `[batch]`. A sentence whose maximum is 0 gets
            the empty sequence, with score 0.
        search: `BeamSearch`, of which `beam_size`, `patience` and the length penalty
            are used here.
        ids: `SpecialIds`. Of these, only the end id is generated. Log-probabilities
            are still relative to the model's whole vocabulary.
        n_best: Number of best hypotheses to find per sentence, at most `beam_size`. An
            int or a scalar int32 tensor.
        vocabulary_size: If given, only ids below this number are generated. Needed if
            the output matrix has more rows than the tokenizer has ids.
        buffer_length: Length of the returned sequences. Defaults to the largest
            `max_length`. Required under `jax.jit` if `max_length` is a tensor.
        drop_finished: Whether finished sentences leave the batch: `True`, `False`, or
            `"auto"`, which means `False` on JAX and `True` on other backends. Pass
            `False` if XLA compiles the search: large batches of a constant size are
            then divided instead.
        num_results: Number of hypotheses to return per sentence, an int. Those after
            the first `n_best` are the next best that the search found before it
            stopped. Defaults to `n_best` if that is an int, and to `beam_size` if it is
            a tensor.
        required_ids: int32 `[batch, places]`, the phrases that each sentence's result
            must contain (see `required_row`), or `None`. A hypothesis that lacks
            one does not end. At the maximum length, those that contain the most count.
        word_edges: bool `[2, vocabulary]`, whether each token begins, and ends, within
            a word. A required phrase counts only at the end of a word. If
            `None`, it counts everywhere.
        first_ids: int32 `[batch]`, the first token of each sentence's hypotheses, with
            log-probability 0 whatever the model assigns to it, as the target language
            of multilingual models. If `None`, the first token is not forced.
        is_forced: bool `[batch]`, sentences that have at least `patience=1`, or `None`.
            If forced tokens are improbable, a length penalty prefers ever longer
            hypotheses.

    Returns:
        `(sequences, scores)`: int32 `[batch, num_results, buffer_length]`, including
        the end id, then padding; float32 `[batch, num_results]`, highest first. Slots
        without a hypothesis have score minus infinity and contain only padding. If
        logits are NaN or infinite, all scores of the sentence are infinity.

    Raises:
        ValueError: If `n_best` is below 1, above `beam_size`, or above `num_results`,
            or the end id equals another special id.

    Examples:
        >>> rows = [[0, 0, 0, 0, 0.6, 0.4]] * 4  # probabilities after the start id
        >>> rows += [[0, 0, 0, 0.4, 0.3, 0.3]]  # after token 4; id 3 ends a sequence
        >>> rows += [[0, 0, 0, 0.9, 0.05, 0.05]]  # after token 5
        >>> logits = keras.ops.log(keras.ops.convert_to_tensor(rows) + 1e-9)
        >>> def step(ids, cache, context, index):
        ...     return keras.ops.take(logits, ids[:, 0], axis=0), cache
        ...
        >>> for beam_size in (1, 2):
        ...     search = kt.BeamSearch(beam_size, length_penalty=0.0)
        ...     sequences, scores = kt.decoding.beam_search(step, {}, {}, 1, 4, search)
        ...     probability = float(keras.ops.exp(scores[0, 0]))
        ...     print(sequences[0, 0].numpy(), f"{probability:.2f}")
        ...
        [4 3 0 0] 0.24
        [5 3 0 0] 0.36
    """
    decoder, drop_finished = StepDecoder.of(decoder), has_dynamic_shapes(drop_finished)
    beam_size = search.beam_size
    if _is_number(n_best) and not 1 <= n_best <= beam_size:
        raise ValueError(
            "`n_best` must be between 1 and `beam_size`. "
            f"Received: beam_size={beam_size}, n_best={n_best}."
        )
    if num_results is None:
        num_results = n_best if _is_number(n_best) else beam_size
    elif _is_number(n_best) and num_results < n_best:
        raise ValueError(
            "`num_results` must be at least `n_best`. "
            f"Received: num_results={num_results}, n_best={n_best}."
        )
    if beam_size == 1:
        # Greedy search ends with its first finished hypothesis.
        search = dataclasses.replace(search, patience=1)
    first_counts = None
    if search.patience is None and is_forced is not None:
        search = dataclasses.replace(search, patience=1)
        # The others never have enough finished hypotheses.
        first_counts = ops.cast(ops.where(is_forced, 0, -(2**30)), "int32")
    excluded = ids.excluded_ids()
    max_lengths, buffer_length = resolve_lengths(max_length, buffer_length, batch_size)
    edges = None
    if word_edges is not None:
        edges = np.array(word_edges)[:, :vocabulary_size]
        edges[0, [*excluded]] = True
        edges = ops.convert_to_tensor(edges)

    def step(state, cache, context, index):
        logits, cache = next_logits(decoder, state.last_ids, cache, context, index)
        are_log_probs, may_follow = decoder.returns_log_probs, None
        if required_ids is not None:
            may_follow = state.progress.open_places(edges)
            logits = logits if are_log_probs else ops.log_softmax(logits, axis=-1)
            are_log_probs = True
        best = _best_tokens(
            logits,
            # One more than `beam_size`, because the end id may be among the best.
            beam_size + 1,
            vocabulary_size,
            excluded,
            are_log_probs,
            # A search with dynamic shapes is not compiled by XLA.
            uses_softmax=drop_finished,
        )
        if required_ids is not None:
            best = _add_required(
                *(state.progress, may_follow, edges, ids.end, logits, *best)
            )
        if first_ids is not None:
            best = _force_first(state, index, *best)
        added = decoder.added_scores and decoder.added_scores(cache)
        state, parents = _expand_beams(
            *(state, *best, index, search, ids.end, n_best),
            *(may_follow, edges, added),
        )
        if beam_size > 1:
            cache = decoder.reorder(cache, parents)
        return state, cache

    sizes = (batch_size, beam_size, buffer_length)
    state = _initial_state(max_lengths, sizes, num_results, ids)
    if required_ids is not None:
        progress = Progress.of(required_ids, beam_size, ids.pad)
        state = state._replace(progress=progress)
    if first_ids is not None:
        state = state._replace(first_ids=ops.cast(first_ids, "int32"))
    if first_counts is not None:
        state = state._replace(num_finished=first_counts)
    state = decode_loop(
        *(step, state, cache, context, buffer_length, drop_finished),
        decoder.compact if drop_finished else decoder.grow,
    )
    found = state.finished_scores > NEG_INF
    sequences = ops.where(found[:, :, None], state.finished_sequences, ids.pad)
    return sequences, state.finished_scores


def _is_number(n_best):
    return isinstance(n_best, numbers.Integral)


class BeamState(NamedTuple):
    """Hypotheses of all sentences."""

    alive_sequences: Any  # int32 [batch, beam_size, buffer_length]
    alive_log_probs: Any  # float32 [batch, beam_size], minus infinity in empty slots
    last_ids: Any  # int32 [batch, beam_size]
    finished_sequences: Any  # int32 [batch, num_results, buffer_length]
    finished_scores: Any  # float32 [batch, num_results], highest first
    num_finished: Any  # int32 [batch], counted only with `patience`
    max_lengths: Any  # int32 [batch]
    done: Any  # bool [batch]
    progress: Any = ()  # a Progress if phrases are required
    first_ids: Any = ()  # int32 [batch] if first tokens are forced


def _initial_state(max_lengths, sizes, num_results, ids):
    batch_size, beam_size, buffer_length = sizes
    done = max_lengths <= 0
    # All slots start alike, so more than one alive slot would give equal hypotheses.
    alive = ops.logical_and(ops.arange(beam_size) == 0, ops.logical_not(done[:, None]))
    # A sentence of maximum length 0 has one result, the empty sequence.
    is_empty = ops.logical_and(ops.arange(num_results) == 0, done[:, None])
    finished_shape = (batch_size, num_results, buffer_length)
    return BeamState(
        alive_sequences=ops.full(sizes, ids.pad, dtype="int32"),
        alive_log_probs=_zero_where(alive),
        last_ids=ops.full((batch_size, beam_size), ids.start, dtype="int32"),
        finished_sequences=ops.full(finished_shape, ids.pad, dtype="int32"),
        finished_scores=_zero_where(is_empty),
        num_finished=ops.zeros_like(max_lengths),
        max_lengths=max_lengths,
        done=done,
    )


def _zero_where(condition):
    """Returns float32, 0 where `condition` is true and minus infinity elsewhere."""
    return ops.cast(ops.where(condition, 0.0, NEG_INF), "float32")


def _best_tokens(
    logits, num_tokens, vocabulary_size, excluded, are_log_probs, uses_softmax
):
    """Returns log-probabilities and ids of each row's best tokens.

    The results are float32 and int32 `[rows, k]`. k is `num_tokens + len(excluded)`, or
    the number of ids if that is smaller. Excluded ids get log-probability minus
    infinity.
    """
    is_cut = vocabulary_size is not None and vocabulary_size < logits.shape[1]
    allowed = logits[:, :vocabulary_size] if is_cut else logits
    # Take extra candidates so that enough remain after excluded ids are removed.
    num_candidates = min(num_tokens + len(excluded), allowed.shape[1])
    log_probs, tokens = top_k(allowed, num_candidates)
    if not are_log_probs:
        log_probs = best_log_probs(logits, log_probs, tokens, not is_cut, uses_softmax)
    # Rounding can give a probability above 1, but `_is_done` assumes at most 1.
    log_probs = ops.minimum(log_probs, 0.0)
    is_excluded = ops.any(tokens[:, :, None] == np.array(excluded, "int32"), axis=2)
    return ops.where(is_excluded, NEG_INF, log_probs), tokens


def _add_required(progress, may_follow, edges, end_id, logits, log_probs, tokens):
    """Adds the ids that continue required phrases to the best tokens of each row.

    After a phrase, the best token that does not continue its last word is added, too.
    """
    num_places = shape(may_follow)[2]
    may_follow = ops.reshape(may_follow, (-1, num_places))
    beam_size = progress.met.shape[1]
    added = ops.repeat(ops.maximum(progress.ids, 0), beam_size, axis=0)
    if edges is not None:
        pending = progress.pending()
        may_end = ops.reshape(progress.is_met_with(pending), (-1, 1))
        is_end = ops.arange(edges.shape[1], dtype="int32") == end_id
        excluded = ops.logical_or(
            edges[0], ops.logical_and(is_end, ops.logical_not(may_end))
        )
        others = ops.where(excluded, NEG_INF, logits[:, : edges.shape[1]])
        follower = ops.cast(ops.top_k(others, 1)[1], "int32")
        added = ops.concatenate([added, follower], axis=1)
        pending = ops.reshape(ops.any(pending, axis=2), (-1, 1))
        may_follow = ops.concatenate([may_follow, pending], axis=1)
    place = ops.arange(shape(added)[1], dtype="int32")
    is_known = ops.any(added[:, :, None] == tokens[:, None], axis=2)
    is_earlier = ops.logical_and(may_follow[:, None], place < place[:, None])
    is_same = added[:, :, None] == added[:, None]
    is_known = ops.logical_or(
        is_known, ops.any(ops.logical_and(is_same, is_earlier), axis=2)
    )
    is_new = ops.logical_and(may_follow, ops.logical_not(is_known))
    added_log_probs = gather_each(logits, added, axis=1)
    added_log_probs = ops.where(is_new, ops.minimum(added_log_probs, 0.0), NEG_INF)
    return (
        ops.concatenate([log_probs, added_log_probs], axis=1),
        ops.concatenate([tokens, added], axis=1),
    )


def _force_first(state, index, log_probs, tokens):
    """Replaces each row's best tokens at the first position by the forced one."""
    forced = ops.repeat(state.first_ids, state.last_ids.shape[1])[:, None]
    # The same token must not fill the beam.
    free = _zero_where(ops.arange(shape(tokens)[1]) == 0)
    is_first = index == 0
    return ops.where(is_first, free, log_probs), ops.where(is_first, forced, tokens)


def _expand_beams(
    state,
    log_probs,
    tokens,
    index,
    search,
    end_id,
    n_best,
    may_follow=None,
    edges=None,
    added=None,
):
    """Expands every sentence's beam by one token.

    `state` has hypotheses of `index` tokens. `log_probs` and `tokens`, both `[batch *
    beam_size, k]`, are from `_best_tokens`. `may_follow` are the `open_places` of
    required phrases with the given `edges`, and `added` are the `added_scores` of
    `StepDecoder`, or `None`. Returns the state with hypotheses of `index + 1` tokens,
    and the row of the old hypothesis that each of them extends, int32 `[batch *
    beam_size]`.
    """
    beam_size = search.beam_size
    # Each [batch, 2, beam_size]: the best continuations, and the best unfinished ones.
    new_log_probs, new_tokens, parents = _continue(
        state, log_probs, tokens, end_id, index, may_follow, edges
    )
    sequences = _select(
        state.alive_sequences, ops.reshape(parents, (-1,)), 2 * beam_size
    )
    here = ops.arange(shape(sequences)[2], dtype="int32") == index
    sequences = ops.where(
        here, ops.reshape(new_tokens, (-1, 2 * beam_size, 1)), sequences
    )

    length = index + 1
    best_log_probs = new_log_probs[:, 0]
    finished = ops.logical_and(new_tokens[:, 0] == end_id, best_log_probs > NEG_INF)
    scores = best_log_probs / search.penalty(length)
    if added is not None:
        scores = scores + gather(added, parents[:, 0], axis=0)
    finished_sequences, finished_scores = _update_finished(
        state, sequences, scores, finished, length
    )
    # NaN, which comes from logits that are not finite, remains in a sum.
    total = ops.sum(ops.reshape(log_probs, (shape(state.done)[0], -1)), axis=1)
    is_finite = ops.logical_or(total <= 0, state.done)[:, None]
    finished_scores = ops.where(is_finite, finished_scores, -NEG_INF)
    num_finished = state.num_finished
    if search.patience is not None:
        num_finished = num_finished + ops.sum(ops.cast(finished, "int32"), axis=1)
    state = state._replace(
        alive_sequences=sequences[:, beam_size:],
        last_ids=new_tokens[:, 1],
        finished_sequences=finished_sequences,
        finished_scores=finished_scores,
        num_finished=num_finished,
    )
    if may_follow is not None:
        progress = state.progress.extend(
            may_follow, parents[:, 1] % beam_size, state.last_ids, edges
        )
        state = state._replace(progress=progress)
    alive_log_probs = new_log_probs[:, 1]
    done = _is_done(state, alive_log_probs, length, search, n_best)
    # Later steps cannot change a sentence without alive hypotheses.
    alive_log_probs = ops.where(done[:, None], NEG_INF, alive_log_probs)
    state = state._replace(alive_log_probs=alive_log_probs, done=done)
    return state, ops.reshape(parents[:, 1], (-1,))


def _continue(state, log_probs, tokens, end_id, index, may_follow, edges):
    """Selects each sentence's best continuations, and the best unfinished ones.

    `tokens` has at least `beam_size + 1` candidates per hypothesis, which is enough for
    both, because only one of them is the end id. Returns log-probabilities, tokens, and
    the rows of the hypotheses that they extend, each `[batch, 2, beam_size]`: index 0
    of the second axis has the best continuations, and index 1 the best unfinished ones.
    """
    beam_size = state.last_ids.shape[1]
    # Required phrases add as many candidates as the row of the longest has places.
    num_tokens = tokens.shape[1] or shape(tokens)[1]
    candidates = ops.reshape(log_probs, (-1, beam_size, num_tokens))
    candidates = candidates + state.alive_log_probs[:, :, None]
    of_sentence = (-1, 1, beam_size * num_tokens)
    candidates = ops.reshape(candidates, of_sentence)
    is_end = ops.reshape(tokens, of_sentence) == end_id
    unfinished = ops.where(is_end, NEG_INF, candidates)
    candidates = ops.concatenate([candidates, unfinished], axis=1)
    if may_follow is None:
        log_probs, places = ops.top_k(candidates, beam_size)
        places = ops.cast(places, "int32")
    else:
        log_probs, places = _allocate(
            state, candidates, tokens, end_id, index, may_follow, edges
        )
    batch = ops.arange(shape(state.done)[0], dtype="int32")
    first_row = (batch * beam_size)[:, None, None]
    parents = first_row + places // num_tokens
    tokens = gather(ops.reshape(tokens, (-1,)), first_row * num_tokens + places, axis=0)
    return log_probs, tokens, parents


def _allocate(state, candidates, tokens, end_id, index, may_follow, edges):
    """Selects continuations from all banks (see `choose`).

    `candidates` are the log-probabilities of `_continue`, `[batch, 2, n]`. Returns the
    selected ones and their places, `[batch, 2, beam_size]`.
    """
    beam_size = state.last_ids.shape[1]
    tokens = ops.reshape(tokens, (-1, beam_size, shape(tokens)[1]))
    banks = state.progress.banks(may_follow, tokens, edges)
    lacks = banks < state.progress.total()[:, :, None]
    cannot_end = ops.logical_and(tokens == end_id, lacks)
    banks, cannot_end = (
        ops.reshape(each, (-1, 1, shape(candidates)[2])) for each in (banks, cannot_end)
    )
    candidates = ops.where(cannot_end, NEG_INF, candidates)
    # At the maximum length, only the highest bank counts.
    highest = ops.max(ops.where(candidates > NEG_INF, banks, 0), axis=2, keepdims=True)
    at_limit = index + 1 >= state.max_lengths
    is_low = ops.logical_and(at_limit[:, None, None], banks < highest)
    candidates = ops.where(is_low, NEG_INF, candidates)
    places = choose(candidates, banks, beam_size)
    return gather_each(candidates, places, axis=2), places


def _update_finished(state, sequences, scores, finished, length):
    """Merges newly finished hypotheses into the best finished ones.

    Of the `sequences`, int32 `[batch, n, buffer_length]`, the first `beam_size` may
    finish. They have `length` tokens. `scores` and `finished` are `[batch,
    beam_size]`. Returns new `finished_sequences` and `finished_scores`.
    """
    num_results = state.finished_scores.shape[1]
    at_limit = length >= state.max_lengths
    # At the maximum length, unfinished hypotheses count only if none has finished.
    none_before = state.finished_scores[:, 0] == NEG_INF
    none_now = ops.logical_not(ops.any(finished, axis=1))
    none_finished = ops.logical_and(none_before, none_now)
    cut_off = ops.logical_and(at_limit, none_finished)[:, None]
    scores = ops.where(ops.logical_or(finished, cut_off), scores, NEG_INF)
    scores = ops.concatenate([state.finished_scores, scores], axis=1)
    best_scores, kept = ops.top_k(scores, num_results)
    batch = ops.arange(shape(state.done)[0], dtype="int32")[:, None]
    rows = batch * (num_results + sequences.shape[1]) + ops.cast(kept, "int32")
    best_sequences = _select(
        ops.concatenate([state.finished_sequences, sequences], axis=1),
        ops.reshape(rows, (-1,)),
        num_results,
    )
    return best_sequences, best_scores


def _is_done(state, alive_log_probs, length, search, n_best):
    """Returns which sentences are done (see `beam_search`), bool `[batch]`."""
    bound = ops.max(alive_log_probs, axis=1) / search.penalty(state.max_lengths)
    if _is_number(n_best):
        nth_score = state.finished_scores[:, n_best - 1]
    else:
        nth_score = gather(state.finished_scores, n_best - 1, axis=1)
    done = ops.logical_or(length >= state.max_lengths, bound <= nth_score)
    if search.patience is not None:
        # The product is rounded. The limit keeps it within int32.
        threshold = int(min(search.patience * search.beam_size, 2**30) + 0.5)
        maximum = max if _is_number(n_best) else ops.maximum
        enough = state.num_finished >= maximum(threshold, n_best)
        if search.length_penalty == 0:
            enough = ops.logical_and(enough, bound <= state.finished_scores[:, 0])
        done = ops.logical_or(done, enough)
    return ops.logical_or(state.done, done)


def _select(sequences, rows, num_rows):
    """Gathers `num_rows` sequences per sentence, int32 `[batch, num_rows, length]`.

    `rows` are indices into the first two axes, flattened to one.
    """
    length = shape(sequences)[2]
    sequences = gather(ops.reshape(sequences, (-1, length)), rows, axis=0)
    return ops.reshape(sequences, (-1, num_rows, length))
