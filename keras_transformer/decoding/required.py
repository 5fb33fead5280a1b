"""Required phrases: dynamic beam allocation (Post and Vilar, 2018) in `keras.ops`.

A sentence has phrases, and a phrase has alternatives, of which one must occur. A row of
ids describes them: an alternative is a sequence of ids, followed by one of the marks
below. All alternatives of a row are searched for at once, by the algorithm Shift-And
(Baeza-Yates and Gonnet, 1992): a hypothesis has one flag per place of the row.

The hypotheses of a beam are divided into banks by the number of required tokens that
they contain. The beam takes the best of each bank, then the second best, and so on, as
Hu et al. (2019) do it with sorted arrays. Each step leads from the highest bank to a
higher one, so that all phrases are complete after as many steps as they have tokens.

A phrase is met by the token after it, which must not continue its last word. `edges`,
bool `[2, vocabulary]`, are whether each token begins, and ends, within a word. If they
are `None`, every token may follow.
"""

import collections
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.numerics.indexing import gather, gather_each, shape

# Marks after an alternative: another one follows, another phrase follows, and another
# phrase follows that begins only where this one has ended.
ALTERNATIVE, PHRASE, THEN = -1, -2, -3
_FAR = 2**30


class Progress(NamedTuple):
    """Required phrases of sentences, and what hypotheses contain of them.

    The first five have the shape `[batch, places]`, the next two `[batch, beam_size,
    places]`. A place is an id or a mark.
    """

    ids: Any  # int32, with padding replaced by -1
    begins: Any  # bool, whether an alternative begins here
    left: Any  # int32, the number of ids after this one in its alternative
    need: Any  # int32, the number of ids of the phrase's shortest alternative
    phrase: Any  # int32, the phrase's index
    matched: Any  # bool, whether the last tokens are the alternative's up to here
    met: Any  # bool, whether the phrase of this place has occurred
    is_open: Any  # bool [batch, beam_size], whether the last token ends within a word

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
        return cls(ids, begins, left, need, phrase, none, none, none[:, :, 0])

    def open_places(self, edges):
        """Returns the places whose ids would continue an alternative, as `matched`."""
        pending = self.pending()
        ends_word = self._ends_word(ops.maximum(self.ids, 0)[:, None], edges)
        # A phrase after `THEN` waits for the phrase before it.
        waits = ops.logical_and(_shift(self.ids, fill=PHRASE) == THEN, self.begins)
        waits = _any_of_phrase(waits[:, None], self.phrase)
        met, before = (
            ops.logical_or(
                _any_of_phrase(self.met, self.phrase, offset),
                ops.logical_and(
                    _any_of_phrase(pending, self.phrase, offset), ends_word
                ),
            )
            for offset in (0, 1)
        )
        may_begin = ops.logical_and(
            self.begins[:, None], ops.logical_or(before, ops.logical_not(waits))
        )
        may_continue = ops.logical_and(_shift(self.matched), self.ids[:, None] >= 0)
        either = ops.logical_or(may_begin, may_continue)
        return ops.logical_and(either, ops.logical_not(met))

    def pending(self):
        """Returns the phrases that are met if the next token ends a word, as `met`."""
        is_last = ops.logical_and(self.matched, self.left[:, None] == 0)
        return _any_of_phrase(is_last, self.phrase)

    def is_met_with(self, pending):
        """Returns whether all phrases are met or pending, bool `[batch, beam_size]`."""
        is_other = (self.ids > PHRASE)[:, None]
        met = ops.logical_or(self.met, pending)
        return ops.all(ops.logical_or(met, is_other), axis=2)

    def _ends_word(self, tokens, edges):
        """Returns which tokens `[batch, beam_size, n]` do not continue a word."""
        if edges is None:
            return ops.ones_like(self.is_open[:, :, None])
        goes_on = ops.logical_and(self.is_open[:, :, None], gather(edges[0], tokens))
        return ops.logical_not(goes_on)

    def banks(self, open_places, tokens, edges):
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
        # Several alternatives of a phrase may end with the same token.
        sizes = shape(is_complete)
        flat = ops.reshape(is_complete, (sizes[0], -1, sizes[3]))
        done = self._total(_any_of_phrase(flat, self.phrase))
        done = ops.reshape(done, sizes[:3])
        # While a token completes a phrase, it may also begin the same one again.
        done = ops.where(done > 0, done, ops.max(gain, axis=3))
        met, ended = (
            self._total(each)[:, :, None] for each in (self.met, self.pending())
        )
        ends_word = self._ends_word(tokens, edges)
        # The end of a word comes before its continuation by the same phrase.
        again = ops.where(ended > 0, ops.maximum(done - 1, 0), done)
        return met + ops.where(ends_word, ended + done, again)

    def total(self):
        """Returns the bank of hypotheses with all phrases, int32 `[batch, 1]`."""
        return self._total(ops.ones_like(self.met[:, :1]))

    def _total(self, met):
        ends = ops.where(self.ids <= PHRASE, self.need, 0)
        return ops.sum(ops.where(met, ends[:, None], 0), axis=2)

    def extend(self, open_places, parents, tokens, edges):
        """Returns the progress of hypotheses that extend others by a token each.

        `parents` and `tokens`, int32 `[batch, beam_size]`, are the extended hypotheses
        of the same sentence and the tokens.
        """
        is_open, may_match, ended, met = (
            gather_each(each, parents, axis=1)
            for each in (self.is_open, open_places, self.pending(), self.met)
        )
        tokens = tokens[:, :, None]
        matched = ops.logical_and(may_match, self.ids[:, None] == tokens)
        ends_word = self._replace(is_open=is_open)._ends_word(tokens, edges)
        met = ops.logical_or(met, ops.logical_and(ended, ends_word))
        if edges is not None:
            is_open = gather(edges[1], tokens[:, :, 0])
        return self._replace(matched=matched, met=met, is_open=is_open)


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
    """Encodes the required phrases of a sentence as a row of ids and marks.

    Searches over ids need it; `Translator.n_best` takes the phrases as texts.

    A phrase is a list of alternatives, which are lists of ids. A phrase that is given
    twice must occur twice. An occurrence may count for several different phrases, such
    as 5 6 and 6 7 in 5 6 7.

    Returns:
        List of ints, a row of the argument `required_ids` of `beam_search`, without
        padding.

    Examples:
        >>> kt.decoding.required_row([[[5, 6]], [[7], [8, 9]]])  # 5 6, and 7 or 8 9
        [5, 6, -2, 7, -1, 8, 9, -2]
    """
    phrases = [tuple(dict.fromkeys(map(tuple, phrase))) for phrase in phrases]
    row = []
    for phrase, count in collections.Counter(phrases).items():
        for number in range(count):
            for alternative in phrase:
                row += [*alternative, ALTERNATIVE]
            row[-1] = PHRASE if number == count - 1 else THEN
    return row
