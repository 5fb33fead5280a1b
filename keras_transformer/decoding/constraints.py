"""Decoder that constrains another decoder with prefixes and forbidden phrases.

Log-probabilities are not renormalized. A forced token keeps the log-probability that
the model assigns to it.
"""

from keras import ops

from keras_transformer.decoding.beam_search import NEG_INF
from keras_transformer.decoding.compiled import shared_constant
from keras_transformer.decoding.forbidden import FORBIDDEN, Automaton
from keras_transformer.decoding.loop import WrappingDecoder, next_logits
from keras_transformer.decoding.options import SpecialIds
from keras_transformer.numerics.indexing import gather, shape


class ConstrainedDecoder(WrappingDecoder):
    """Decoder that forces prefixes and excludes forbidden phrases.

    `prefix_ids` (see `translate_ids`) are forced even if `automaton` forbids them. Ids
    that the automaton lacks are forbidden as well. A translation may be cut off at the
    last of `max_lengths` positions. So at this position, a token is also forbidden if
    the automaton forbids the end id after it.

    `prefix_ends` are tokens that may replace the rest of a prefix from a position on:
    those with a rank in the range `[start, end)` of the position.
    """

    returns_log_probs = True

    def __init__(
        self,
        decoder,
        beam_size,
        max_lengths,
        ids=SpecialIds(),
        prefix_ids=None,
        automaton=None,
        prefix_ends=None,
        token_ranks=None,
    ):
        super().__init__(decoder)
        self._beam_size = beam_size
        self._max_lengths = max_lengths
        self._pad_id = ids.pad
        self._prefix_ids = prefix_ids
        self._prefix_ends = prefix_ends
        if prefix_ends is not None:
            self._token_ranks = shared_constant(token_ranks)
        self._automaton = None
        if automaton is not None:
            self._automaton = Automaton(*map(shared_constant, automaton))

    def wrap(self, cache, context, batch_size):
        """Adds this decoder's state to an empty cache and its context."""
        cache, context = {"inner": cache}, {"inner": context}
        if self._prefix_ids is not None:
            # All steps after the prefixes read the added column of padding.
            padding = ops.full((batch_size, 1), self._pad_id, "int32")
            prefix_ids = ops.cast(self._prefix_ids, "int32")
            context["prefix"] = ops.concatenate([prefix_ids, padding], axis=1)
        if self._prefix_ends is not None:
            context["ends"] = ops.pad(self._prefix_ends, [[0, 0], [0, 1], [0, 0]])
            # Whether a hypothesis begins with the ids of the prefix.
            cache["follows"] = ops.ones((batch_size * self._beam_size,), "bool")
        if self._automaton is not None:
            max_lengths = ops.convert_to_tensor(self._max_lengths, dtype="int32")
            context["limit"] = ops.broadcast_to(max_lengths, (batch_size,))
            cache["state"] = ops.zeros((batch_size * self._beam_size,), dtype="int32")
        return cache, context

    def step(self, ids, cache, context, index):
        """Returns log-probabilities `[rows, vocabulary]` and the updated cache."""
        inner, context_of_inner = cache["inner"], context["inner"]
        logits, inner = next_logits(self._decoder, ids, inner, context_of_inner, index)
        if not self._decoder.returns_log_probs:
            logits = ops.log_softmax(logits, axis=-1)
        log_probs = unconstrained = logits
        cache = {**cache, "inner": inner}
        tokens = ops.cast(ids[:, 0], "int32")
        if self._prefix_ends is not None:
            last = self._forced_ids(context, index - 1)
            same = ops.logical_or(tokens == last, last == self._pad_id)
            follows = ops.logical_and(cache["follows"], same)
            cache["follows"] = ops.logical_or(follows, index == 0)
        if self._automaton is not None:
            # A forced prefix may contain a forbidden phrase. It leads to state 0.
            states = self._automaton.next_states(cache["state"], tokens)
            states = ops.maximum(states, 0)
            if self._prefix_ids is not None:
                # A forbidden word may end with the prefix.
                is_word = ops.logical_not(gather(self._automaton.may_end, states))
                forced = self._forced_ids(context, index - 1)
                is_forced = ops.logical_and(forced == tokens, forced != self._pad_id)
                states = ops.where(ops.logical_and(is_word, is_forced), 0, states)
            cache["state"] = states
            is_last = ops.repeat(index + 1 >= context["limit"], self._beam_size)
            allowed = _fit_columns(self._allowed_ids(states, is_last), logits.shape[-1])
            log_probs = ops.where(allowed, unconstrained, NEG_INF)
        if self._prefix_ids is not None:
            forced = self._forced_ids(context, index)[:, None]
            tokens = ops.arange(logits.shape[-1], dtype="int32")
            forced_log_probs = NEG_INF
            is_free = forced == self._pad_id
            if self._prefix_ends is not None:
                starts, ends = ops.unstack(self._at(context["ends"], index), 2, axis=1)
                ranks = self._token_ranks
                begins = ops.logical_and(
                    ranks >= starts[:, None], ranks < ends[:, None]
                )
                begins = _fit_columns(begins, logits.shape[-1])
                forced_log_probs = ops.where(begins, log_probs, NEG_INF)
                is_free = ops.logical_or(
                    is_free, ops.logical_not(cache["follows"])[:, None]
                )
            forced_log_probs = ops.where(
                tokens == forced, unconstrained, forced_log_probs
            )
            log_probs = ops.where(is_free, log_probs, forced_log_probs)
        return log_probs, cache

    def _forced_ids(self, context, index):
        """Returns the ids of prefixes at a position, `[n]`, or padding after them."""
        return self._at(context["prefix"], index)

    def _at(self, array, index):
        """Returns a column of `[batch, length, ...]` as `[n, ...]`."""
        place = ops.minimum(ops.maximum(index, 0), shape(array)[1] - 1)
        return ops.repeat(gather(array, place, axis=1), self._beam_size, axis=0)

    @property
    def added_scores(self):
        """Function that returns the coverage penalty, or `None` (see `StepDecoder`)."""
        if self._decoder.added_scores is None:
            return None
        return lambda cache: self._decoder.added_scores(cache["inner"])

    def _allowed_ids(self, states, is_last):
        """Returns which ids are allowed in each state, bool `[n, vocabulary + 1]`."""
        num_masks, num_ids = self._automaton.allowed.shape
        masks = gather(self._automaton.mask_of, states)
        masks = masks + num_masks // 2 * ops.cast(is_last, "int32")
        tokens, targets = self._automaton.edges(states)
        may_end = gather(self._automaton.may_end, ops.maximum(targets, 0))
        forbidden = ops.logical_or(
            targets == FORBIDDEN,
            ops.logical_and(is_last[:, None], ops.logical_not(may_end)),
        )
        tokens = ops.where(forbidden, tokens, num_ids - 1)
        numbers = ops.arange(shape(states)[0], dtype="int32")[:, None]
        places = ops.stack([ops.broadcast_to(numbers, shape(tokens)), tokens], 2)
        places = ops.reshape(places, (-1, 2))
        return ops.scatter_update(
            gather(self._automaton.allowed, masks, axis=0),
            places,
            ops.zeros((shape(places)[0],), "bool"),
        )


def _fit_columns(allowed, size):
    """Pads `allowed` with false, or trims it, to `size` columns."""
    missing = max(0, size - allowed.shape[-1])
    allowed = allowed[:, :size]
    return ops.pad(allowed, [[0, 0], [0, missing]], constant_values=False)
