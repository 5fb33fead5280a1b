"""Decoder that constrains another decoder with prefixes and forbidden phrases.

Log-probabilities are not renormalized. A forced token keeps the log-probability that
the model assigns to it.
"""

import numpy as np
from keras import ops

from keras_transformer.decoding.beam_search import NEG_INF
from keras_transformer.decoding.loop import StepDecoder
from keras_transformer.decoding.options import SpecialIds


class ConstrainedDecoder:
    """Decoder that forces prefixes and excludes forbidden phrases.

    Args:
        decoder: Decoder (see `beam_search`).
        beam_size: Number of hypotheses or samples per sentence.
        max_lengths: `max_length` of `beam_search`, scalar or `[batch]`. A translation
            may be cut off at the last position. So at this position, a token is also
            forbidden if `next_states` forbids the end id after it.
        ids: `SpecialIds`.
        prefix_ids: int32 `[batch, prefix_length]`, the first tokens of each
            translation, then padding. They are forced even if `next_states` forbids
            them. If `None`, nothing is forced.
        next_states: int32 array `[num_states, vocabulary]`, the transition table from
            `forbidden_transitions`. Ids that have no column are forbidden as well.
            If `None`, nothing is forbidden.
    """

    returns_log_probs = True

    def __init__(
        self,
        decoder,
        beam_size,
        max_lengths,
        ids=SpecialIds(),
        prefix_ids=None,
        next_states=None,
    ):
        self._decoder = StepDecoder.of(decoder)
        self._beam_size = beam_size
        self._max_lengths = max_lengths
        self._pad_id = ids.pad
        self._prefix_ids = prefix_ids
        self._tables = None
        if next_states is not None:
            may_end = next_states[:, ids.end] >= 0
            may_be_last = np.where(
                may_end[next_states] | (next_states < 0), next_states, -1
            )
            self._num_states = len(next_states)
            # The second half of the rows is for the last position. It also forbids
            # tokens after which the end id is forbidden.
            self._tables = ops.convert_to_tensor(
                np.concatenate([next_states, may_be_last]).astype("int32")
            )

    def wrap(self, cache, context, batch_size):
        """Adds this decoder's state to an empty cache and its context."""
        cache, context = {"inner": cache}, {"inner": context}
        if self._prefix_ids is not None:
            # All steps after the prefixes read the added column of padding.
            context["prefix"] = ops.pad(
                self._prefix_ids, [[0, 0], [0, 1]], constant_values=self._pad_id
            )
        if self._tables is not None:
            max_lengths = ops.convert_to_tensor(self._max_lengths, dtype="int32")
            context["limit"] = ops.broadcast_to(max_lengths, (batch_size,))
            cache["state"] = ops.zeros((batch_size * self._beam_size,), dtype="int32")
        return cache, context

    def step(self, ids, cache, context, index):
        """Returns log-probabilities `[rows, vocabulary]` and the updated cache."""
        logits, inner = self._decoder.step(ids, cache["inner"], context["inner"], index)
        logits = ops.reshape(ops.cast(logits, "float32"), (-1, logits.shape[-1]))
        if not self._decoder.returns_log_probs:
            logits = ops.log_softmax(logits, axis=-1)
        log_probs = unconstrained = logits
        cache = {**cache, "inner": inner}
        if self._tables is not None:
            cache["state"] = self._advance(cache["state"], ids[:, 0])
            is_last = ops.repeat(index + 1 >= context["limit"], self._beam_size)
            rows = cache["state"] + self._num_states * ops.cast(is_last, "int32")
            next_states = ops.take(self._tables, rows, axis=0)
            allowed = _fit_columns(next_states, logits.shape[-1]) >= 0
            log_probs = ops.where(allowed, unconstrained, NEG_INF)
        if self._prefix_ids is not None:
            last = ops.shape(context["prefix"])[1] - 1
            forced = ops.take(context["prefix"], ops.minimum(index, last), axis=1)
            forced = ops.repeat(forced, self._beam_size)[:, None]
            tokens = ops.arange(logits.shape[-1], dtype="int32")
            forced_log_probs = ops.where(tokens == forced, unconstrained, NEG_INF)
            log_probs = ops.where(forced == self._pad_id, log_probs, forced_log_probs)
        return log_probs, cache

    def reorder(self, cache, parents):
        """Reorders the cache after hypotheses were replaced within their beam."""
        cache = {**cache, "inner": self._decoder.reorder(cache["inner"], parents)}
        if "state" in cache:
            cache["state"] = ops.take(cache["state"], parents, axis=0)
        return cache

    @property
    def compact(self):
        """Function that compacts the cache, or `None` (see `StepDecoder`)."""
        if self._decoder.compact is None:
            return None
        return lambda cache: {**cache, "inner": self._decoder.compact(cache["inner"])}

    def _advance(self, states, tokens):
        """Returns the states after `tokens`.

        A forced prefix may contain a forbidden phrase. After the token that completes
        the phrase, the table has -1. It is replaced with 0, the initial state.
        """
        flat = ops.reshape(self._tables, (-1,))
        places = states * self._tables.shape[1] + ops.cast(tokens, "int32")
        return ops.maximum(ops.take(flat, places, axis=0), 0)


def _fit_columns(states, size):
    """Pads `states` with -1, or trims it, to `size` columns."""
    missing = max(0, size - states.shape[-1])
    return ops.pad(states[:, :size], [[0, 0], [0, missing]], constant_values=-1)
