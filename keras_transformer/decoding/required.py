"""Required phrases: dynamic beam allocation (Post and Vilar, 2018) in `keras.ops`.

A sentence has phrases, and a phrase has alternatives, of which one must occur. A row of
ids describes them: an alternative is a sequence of ids, followed by one of the marks
below. All alternatives of a row are searched for at once, by the algorithm Shift-And
(Baeza-Yates and Gonnet, 1992): a hypothesis has one flag per place of the row.

The hypotheses of a beam are divided into banks by the number of required tokens that
they contain. The beam takes the best of each bank, then the second best, and so on, as
Hu et al. (2019) do it with sorted arrays. Each step leads from the highest bank to a
higher one, so that all phrases are complete after as many steps as they have tokens.
"""

import collections
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.numerics.indexing import shape

# Marks after an alternative: another one follows, another phrase follows, and another
# phrase follows that begins only where this one has ended.
ALTERNATIVE, PHRASE, THEN = -1, -2, -3
_FAR = 2**30


class Progress(NamedTuple):
    """Required phrases of sentences, and what hypotheses contain of them.

    The first five have the shape `[batch, places]`, the others `[batch, beam_size,
    places]`. A place is an id or a mark.
    """

    ids: Any  # int32, with padding replaced by -1
    begins: Any  # bool, whether an alternative begins here
    left: Any  # int32, the number of ids after this one in its alternative
    need: Any  # int32, the number of ids of the phrase's shortest alternative
    phrase: Any  # int32, the phrase's index
    matched: Any  # bool, whether the last tokens are the alternative's up to here
    met: Any  # bool, whether the phrase of this place has occurred

    @classmethod
    def of(cls, required_ids, beam_size, pad_id):
        """Returns the progress of empty hypotheses (see `translate_ids`)."""
        ids = ops.convert_to_tensor(required_ids, "int32")
        ids = ops.where(ids == pad_id, ALTERNATIVE, ids)
        is_mark = ids < 0
        place = ops.arange(shape(ids)[1], dtype="int32")
        ends_phrase = ops.cast(ids <= PHRASE, "int32")
        phrase = ops.cumsum(ends_phrase, axis=1) - ends_phrase
        begins = ops.logical_and(ops.logical_not(is_mark), _shift(is_mark, fill=True))
        # The place of the next mark.
        follows = ops.logical_and(is_mark[:, None], place[:, None] <= place)
        left = ops.min(ops.where(follows, place, _FAR), axis=2) - place - 1
        lengths = ops.where(begins, left + 1, _FAR)[:, None]
        is_same = phrase[:, :, None] == phrase[:, None]
        need = ops.min(ops.where(is_same, lengths, _FAR), axis=2)
        none = ops.zeros((shape(ids)[0], beam_size, shape(ids)[1]), "bool")
        return cls(ids, begins, left, need, phrase, none, none)

    def open_places(self):
        """Returns the places whose ids would continue an alternative, as `matched`."""
        # A phrase after `THEN` waits for the phrase before it.
        waits = ops.logical_and(_shift(self.ids, fill=PHRASE) == THEN, self.begins)
        waits = _any_of_phrase(waits[:, None], self.phrase)
        before = _any_of_phrase(self.met, self.phrase, offset=1)
        may_begin = ops.logical_and(
            self.begins[:, None], ops.logical_or(before, ops.logical_not(waits))
        )
        may_continue = ops.logical_and(_shift(self.matched), self.ids[:, None] >= 0)
        either = ops.logical_or(may_begin, may_continue)
        return ops.logical_and(either, ops.logical_not(self.met))

    def banks(self, open_places, tokens):
        """Returns the banks of hypotheses after tokens, int32 `[batch, beam_size, n]`.

        A bank counts the ids of complete phrases or, if the token completes none, also
        those of the phrase in progress that has come the furthest.
        """
        matched = ops.logical_and(
            open_places[:, :, None], self.ids[:, None, None] == tokens[..., None]
        )
        need, left = (each[:, None, None] for each in (self.need, self.left))
        gain = ops.where(matched, ops.maximum(need - left, 0), 0)
        is_complete = ops.logical_and(matched, left == 0)
        done = ops.sum(ops.where(is_complete, need, 0), axis=3)
        # While a token completes a phrase, it may also begin the same one again.
        done = ops.where(done > 0, done, ops.max(gain, axis=3))
        return self._total(self.met)[:, :, None] + done

    def total(self):
        """Returns the bank of hypotheses that contain all phrases, int32 `[batch]`."""
        return self._total(ops.ones_like(self.met[:, 0]), axis=1)

    def _total(self, met, axis=2):
        ends = ops.cast(self.ids <= PHRASE, "int32") * self.need
        ends = ends if axis == 1 else ends[:, None]
        return ops.sum(ops.where(met, ends, 0), axis=axis)

    def extend(self, open_places, parents, tokens):
        """Returns the progress of hypotheses that extend others by a token each.

        `parents` and `tokens`, int32 `[batch, beam_size]`, are the extended hypotheses
        of the same sentence and the tokens.
        """
        parents = parents[:, :, None]
        matched = ops.logical_and(
            ops.take_along_axis(open_places, parents, axis=1),
            self.ids[:, None] == tokens[:, :, None],
        )
        is_complete = ops.logical_and(matched, self.left[:, None] == 0)
        met = ops.logical_or(
            ops.take_along_axis(self.met, parents, axis=1),
            _any_of_phrase(is_complete, self.phrase),
        )
        return self._replace(matched=matched, met=met)


def choose(candidates, banks, num_chosen):
    """Returns the places of the candidates that form the next beam.

    They are the best of each bank, highest bank first, then the second best of each,
    and so on. `candidates`, float32 `[..., n]`, are log-probabilities, and `banks` are
    int32 of the same shape. Returns int32 `[..., num_chosen]`.
    """
    place = ops.arange(candidates.shape[-1] or shape(candidates)[-1], dtype="int32")
    one, other = candidates[..., :, None], candidates[..., None, :]
    is_first = ops.logical_and(one == other, place < place[:, None])
    is_better = ops.logical_or(other > one, is_first)
    is_same = banks[..., :, None] == banks[..., None, :]
    rank = ops.sum(ops.cast(ops.logical_and(is_better, is_same), "int32"), axis=-1)
    num_banks = ops.max(banks) + 1
    order = ops.cast(banks - rank * num_banks, "float32")
    order = ops.where(candidates > float("-inf"), order, float("-inf"))
    return ops.cast(ops.top_k(order, num_chosen)[1], "int32")


def _shift(x, fill=False):
    """Moves values by one place to the right along the last axis."""
    first = ops.full_like(x[..., :1], fill)
    return ops.concatenate([first, x[..., :-1]], axis=-1)


def _any_of_phrase(flags, phrase, offset=0):
    """Returns whether any place of a phrase, or of the one before it, has a flag.

    `flags` are bool `[batch, n, places]`, as is the result.
    """
    is_same = phrase[:, :, None] + offset == phrase[:, None]
    counts = ops.matmul(ops.cast(flags, "float32"), ops.cast(is_same, "float32"))
    return counts > 0


def required_row(phrases):
    """Returns the ids and marks that require phrases of a sentence.

    A phrase is a list of alternatives, which are lists of ids. A phrase that is given
    twice must occur twice. An occurrence may count for several different phrases, such
    as 5 6 and 6 7 in 5 6 7.
    """
    # Where an alternative occurs, so does any other one within it.
    pruned = [
        tuple(
            one
            for one in dict.fromkeys(map(tuple, phrase))
            if not any(
                _contains(one, other) for other in map(tuple, phrase) if other != one
            )
        )
        for phrase in phrases
    ]
    row = []
    for phrase, count in collections.Counter(pruned).items():
        for number in range(count):
            for alternative in phrase:
                row += [*alternative, ALTERNATIVE]
            row[-1] = PHRASE if number == count - 1 else THEN
    return row


def _contains(ids, part):
    return any(ids[i : i + len(part)] == part for i in range(len(ids)))
