"""Decoder that changes another decoder's logits by what a hypothesis contains."""

from keras import ops

from keras_transformer.decoding.loop import WrappingDecoder, next_logits
from keras_transformer.numerics.indexing import gather_each, shape

NEG_INF = float("-inf")
# Attention below this value counts as this value, because its logarithm is needed.
_MIN_COVERAGE = 1e-9


class SteeredDecoder(WrappingDecoder):
    """Decoder that avoids repetitions, early ends and missing words.

    It applies the settings `no_repeat_ngram_size`, `repetition_penalty`, `min_length`
    and `coverage_penalty` of `BeamSearch`. The first three change logits before they
    are normalized, as in CTranslate2. Within a forced prefix, logits stay as they are.
    Subwords of required phrases may repeat, because the phrases could not occur else.
    """

    returns_log_probs = False

    def __init__(self, decoder, search, beam_size, ids):
        super().__init__(decoder)
        self._search = search
        self._beam_size = beam_size
        self._ids = ids
        self._sees_history = (
            search.no_repeat_ngram_size > 0 or search.repetition_penalty != 1
        )

    def wrap(
        self,
        cache,
        context,
        source_ids,
        buffer_length,
        prefix_ids=None,
        required_ids=None,
        num_forced=0,
    ):
        """Adds this decoder's state to an empty cache and its context.

        `buffer_length` is the maximum number of tokens. Without a coverage penalty,
        only the number of rows of `source_ids` counts. `num_forced` is the number of
        first tokens that are forced even without a prefix.
        """
        batch_size, source_length = shape(source_ids)
        num_rows = batch_size * self._beam_size
        cache, context = {"inner": cache}, {"inner": context}
        context["free_from"] = ops.full((batch_size,), num_forced, "int32")
        if prefix_ids is not None:
            is_token = ops.cast(ops.not_equal(prefix_ids, self._ids.pad), "int32")
            context["free_from"] = ops.maximum(ops.sum(is_token, axis=1), num_forced)
        if self._sees_history:
            cache["history"] = ops.zeros((num_rows, buffer_length), "int32")
        if self._search.no_repeat_ngram_size:
            # For each token, how many up to it equal the last ones.
            cache["num_equal"] = ops.zeros((num_rows, buffer_length), "int32")
            if required_ids is not None:
                # Marks and padding equal no token of a hypothesis.
                context["required"] = ops.cast(required_ids, "int32")
        if self._search.coverage_penalty:
            is_token = ops.cast(ops.not_equal(source_ids, self._ids.pad), "float32")
            context["is_token"] = is_token
            cache["coverage"] = ops.zeros((num_rows, source_length), "float32")
            cache["added"] = ops.zeros((num_rows,), "float32")
        return cache, context

    def step(self, ids, cache, context, index):
        """Returns logits `[rows, vocabulary]` and the updated cache."""
        attention = [[]] if self._search.coverage_penalty else []
        logits, inner = next_logits(
            *(self._decoder, ids, cache["inner"], context["inner"], index), *attention
        )
        cache = {**cache, "inner": inner}
        if attention:
            self._cover(cache, context, *attention)
        free_from = ops.repeat(context["free_from"], self._beam_size)[:, None]
        steered = logits
        if self._sees_history:
            steered = self._avoid_repetitions(steered, ids, cache, context, index)
        if self._search.min_length:
            is_end = ops.arange(logits.shape[-1], dtype="int32") == self._ids.end
            is_early = index < free_from + self._search.min_length
            steered = ops.where(ops.logical_and(is_end, is_early), NEG_INF, steered)
        return ops.where(index < free_from, logits, steered), cache

    def _cover(self, cache, context, attention):
        """Adds a step's attention to the source, and updates the penalty."""
        mean = sum(attention) / len(attention)  # of an ensemble
        coverage = cache["coverage"]
        coverage = coverage + ops.reshape(mean, (-1, shape(coverage)[1]))
        cache["coverage"] = coverage
        coverage = ops.maximum(ops.minimum(coverage, 1.0), _MIN_COVERAGE)
        is_token = ops.repeat(context["is_token"], self._beam_size, axis=0)
        total = ops.sum(is_token * ops.log(coverage), axis=1)
        cache["added"] = self._search.coverage_penalty * total

    def _avoid_repetitions(self, logits, ids, cache, context, index):
        """Applies the penalty of repeated tokens, and excludes repeated n-grams."""
        history = cache["history"]
        place = ops.arange(shape(history)[1], dtype="int32")
        history = ops.where(place == index - 1, ops.cast(ids, "int32"), history)
        cache["history"] = history
        is_known = ops.broadcast_to(place < index, shape(history))
        penalty = self._search.repetition_penalty
        size = self._search.no_repeat_ngram_size
        if penalty != 1:
            before = gather_each(logits, history, axis=1)
            changed = ops.where(before < 0, before * penalty, before / penalty)
            logits = _replace(logits, history, is_known, changed)
        if size:
            is_equal = ops.logical_and(is_known, history == ops.cast(ids, "int32"))
            num_equal = ops.where(is_equal, _shift(cache["num_equal"]) + 1, 0)
            cache["num_equal"] = num_equal
            # Tokens that followed the last `size - 1` ones before.
            repeats = ops.logical_and(is_known, _shift(num_equal) >= size - 1)
            if "required" in context:
                required = ops.repeat(context["required"], self._beam_size, axis=0)
                is_same = history[:, :, None] == required[:, None]
                is_free = ops.logical_not(ops.any(is_same, axis=2))
                repeats = ops.logical_and(repeats, is_free)
            excluded = ops.full_like(history, NEG_INF, dtype="float32")
            logits = _replace(logits, history, repeats, excluded)
        return logits

    @property
    def added_scores(self):
        """Function that returns the coverage penalty, or `None` (see `StepDecoder`)."""
        return (lambda cache: cache["added"]) if self._search.coverage_penalty else None


def _shift(x):
    """Moves the values of each row by one place to the right."""
    return ops.pad(x[:, :-1], [[0, 0], [1, 0]])


def _replace(logits, tokens, is_used, values):
    """Replaces the logits of the tokens `[rows, n]` that are used."""
    size = logits.shape[-1]
    rows = ops.arange(shape(tokens)[0], dtype="int32")[:, None]
    rows = ops.broadcast_to(rows, shape(tokens))
    # The others are written to a column of their own.
    places = ops.stack([rows, ops.where(is_used, tokens, size)], axis=2)
    return ops.scatter_update(
        ops.pad(logits, [[0, 0], [0, 1]]),
        ops.reshape(places, (-1, 2)),
        ops.reshape(values, (-1,)),
    )[:, :size]
