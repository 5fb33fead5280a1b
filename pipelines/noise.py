"""Noisy copies of training pairs, made anew in each epoch and never stored.

A copy is the text of a pair with one kind of noise, split into subwords again. It
depends only on the seed, the epoch and the pair.
"""

import functools
import random

import numpy as np
import tensorflow as tf

from keras_transformer.pipelines.batching import Copies
from keras_transformer.pipelines.encoded_corpus import EncodedCorpus

# Share of the words that a copy lacks, and of the subwords that it masks.
_DROPPED = 0.1
_MASKED = 0.15
_TYPO_CHARACTERS = 60  # characters of text per typo
# Candidates for the second of two joined pairs, and their maximum distance.
_CANDIDATES = 10
_MAX_DISTANCE = 1000
_ENDS = ".!?…。！？"
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
# First letters and numbers of letters: Greek, Cyrillic, Hebrew, Arabic, Devanagari,
# Thai, Hiragana, Chinese and Korean.
_SCRIPTS = (
    *((0x3B1, 25), (0x430, 32), (0x5D0, 27), (0x628, 19), (0x915, 37)),
    *((0xE01, 46), (0x3042, 82), (0x4E00, 20_000), (0xAC00, 11_172)),
)
_PLACEHOLDERS = ("{name}", "%s", "%d", "{0}", "$1", "<br>", "www.example.com", "@user")


def drop_final_punctuation(source, target, draw):
    """Removes the final punctuation mark of both sides if both have one."""
    if source[-1:] in _ENDS and target[-1:] in _ENDS:
        return source[:-1].rstrip(), target[:-1].rstrip()
    return source, target


def add_typos(source, target, draw):
    """Omits, swaps, doubles or replaces letters of the source."""
    letters = list(source)
    places = [place for place, each in enumerate(letters) if each.isalpha()]
    count = min(len(places), max(1, len(letters) // _TYPO_CHARACTERS))
    for place in draw.sample(places, count):
        kind = draw.randrange(4)
        if kind == 0:
            letters[place] = ""
        elif kind == 1:
            letters[place : place + 2] = letters[place : place + 2][::-1]
        elif kind == 2:
            letters[place] *= 2
        else:
            letters[place] = draw.choice(_ALPHABET)
    return "".join(letters), target


def drop_words(source, target, draw):
    """Removes words of the source at random."""
    words = source.split(" ")
    return " ".join(each for each in words if draw.random() >= _DROPPED), target


def add_foreign_words(source, target, draw):
    """Adds the same word of another script, emoji or placeholder to both sides."""
    first, size = draw.choice(_SCRIPTS)
    word = "".join(chr(first + draw.randrange(size)) for _ in range(draw.randint(2, 5)))
    kinds = (word, chr(0x1F600 + draw.randrange(0x50)), draw.choice(_PLACEHOLDERS))
    form = draw.choice(("{} {}", "{} ({})", "{1}: {0}"))
    word = draw.choice(kinds)
    return form.format(source, word), form.format(target, word)


# For each kind of noise its function, `None` if it changes ids, not texts, and the
# greatest length of a copy, relative to the pair.
KINDS = {
    "lowercase": (lambda source, target, _: (source.lower(), target), 1.3),
    # Few capitals are in a vocabulary.
    "capitals": (lambda source, target, _: (source.upper(), target.upper()), 4.0),
    "final_punctuation": (drop_final_punctuation, 1.0),
    "typos": (add_typos, 1.6),
    "drop_words": (drop_words, 1.0),
    "foreign_words": (add_foreign_words, 1.6),
    "mask": (None, 1.0),
    "join": (None, 2.5),
}


class NoisyCorpus(EncodedCorpus):
    """`EncodedCorpus` whose epochs also contain noisy copies of pairs.

    With `n` rows on disk, `num_pairs`, row `k * n + i` is the copy of row `i` with the
    `k`-th kind of noise. The plan needs one byte of memory per copy, and nothing else
    grows with their number. Copies are batched by upper bounds of their lengths. The
    pair itself takes the place of a copy that exceeds them or lacks all text.

    Args:
        folder: The folder that `encode_corpus` wrote.
        weights: As for `EncodedCorpus`.
        noise: Dict of kinds, the keys of a recipe's `data.noise`, to the share of the
            pairs of which an epoch contains such a copy.
        tokenizer: The `Tokenizer` of the ids.
        seed: Seed of the noise.
        tags: Words in front of sources, which stay unchanged.
        max_length: Maximum number of ids of a side, including the end id.
        parts: Function that receives an array of pair numbers, from 1, and returns the
            number of each pair's corpus, such as `MixedPairs.parts`. Pairs of two
            corpora are not joined. If `None`, there is one corpus.

    Examples:
        >>> pairs = [("12 euros", "12 Euro"), ("13 euros", "13 Euro")]
        >>> tokenizer = kt.open_model("phrases").tokenizer
        >>> corpus = kt.pipelines.encode_corpus(pairs, tokenizer, tokenizer, "corpus")
        >>> noisy = kt.pipelines.NoisyCorpus("corpus", None, {"typos": 1.0}, tokenizer)
        >>> [kt.pipelines.steps_per_epoch(each, 20) for each in (corpus, noisy)]
        [1, 4]
    """

    def __init__(
        self,
        folder,
        weights,
        noise,
        tokenizer,
        seed=1,
        tags=(),
        max_length=256,
        parts=None,
    ):
        super().__init__(folder, weights)
        self._seed, self._tokenizer = seed, tokenizer
        self._parts = parts or np.zeros_like
        self._tags = [int(tokenizer.tokenize([tag]).flat_values[0]) for tag in tags]
        # Eagerly, the operations would take four times as long.
        text, ids = (
            tf.TensorSpec([None], tf.string),
            tf.RaggedTensorSpec([None, None], tf.int32),
        )
        sides = tokenizer.source, tokenizer.target
        self._tokenize = [tf.function(each.tokenize, [text]) for each in sides]
        self._join = [tf.function(each.detokenize, [ids]) for each in sides]
        self._max_length = max_length
        self._kinds = [None, *filter(noise.get, KINDS)]
        self.copies = [
            Copies(noise[kind], functools.partial(self._bounds, KINDS[kind][1]))
            for kind in self._kinds[1:]
        ]

    def _bounds(self, factor, lengths):
        bounds = np.ceil(factor * lengths).astype(np.int32) + 4
        return np.minimum(bounds, self._max_length)

    def lengths(self, rows):
        kinds, rows = np.divmod(rows, self.num_pairs)
        factors = np.array([1.0, *(KINDS[each][1] for each in self._kinds[1:])])[kinds]
        return tuple(
            np.where(kinds == 0, lengths, self._bounds(factors, lengths))
            for lengths in super().lengths(rows)
        )

    def numbers(self, indices):
        return super().numbers(indices % self.num_pairs)

    def _sides(self, indices, lengths, epoch):
        sides = super()._sides(indices % self.num_pairs, lengths, epoch)
        places = np.flatnonzero(indices >= self.num_pairs)
        copies = self._copies(indices[places].tolist(), epoch)
        limits = zip(*self.lengths(indices[places]), strict=True)
        for place, copy, sizes in zip(places, copies, limits, strict=True):
            if all(len(ids) <= size for ids, size in zip(copy, sizes, strict=True)):
                for side, ids in zip(sides, copy, strict=False):
                    side[place] = self.pad_id
                    side[place, : len(ids)] = ids
                for groups in sides[2:]:
                    groups[place] = 0
        return sides

    def _copies(self, indices, epoch):
        """Returns the source and target ids, with end ids, of noisy copies."""
        copies, changes = [], []
        for place, index in enumerate(indices):
            draw = random.Random(f"{self._seed} {epoch} {index}")
            kind, row = self._kinds[index // self.num_pairs], index % self.num_pairs
            tag, source, target = self._split(row)
            if kind == "mask":
                unknown = self._tokenizer.source.unknown_id
                source[:-1] = [
                    unknown if draw.random() < _MASKED else each for each in source[:-1]
                ]
            elif kind == "join":
                for other in self._partners(index, draw):
                    _, *ends = self._split(other)
                    source, target = source[:-1] + ends[0], target[:-1] + ends[1]
            else:
                changes.append((place, KINDS[kind][0], draw))
            copies.append((tag, source, target))
        if changes:
            texts = [copies[place][1:] for place, *_ in changes]
            texts = map(self._decode, (0, 1), zip(*texts, strict=True))
            texts = [
                found if all(found := change(*pair, draw)) else pair
                for (_, change, draw), *pair in zip(changes, *texts, strict=True)
            ]
            found = map(self._encode, (0, 1), zip(*texts, strict=True))
            for (place, *_), *pair in zip(changes, *found, strict=True):
                copies[place] = (copies[place][0], *pair)
        return [(tag + source, target) for tag, source, target in copies]

    def _split(self, row):
        """Returns a row's tag, its other source ids and its target ids, as lists."""
        source, target = (ids.tolist() for ids in self.pair(row))
        length = int(source[0] in self._tags)
        return source[:length], source[length:], target

    def _partners(self, index, draw):
        """Returns a list of a row to join to another row, empty if none fits."""
        row = index % self.num_pairs
        for _ in range(_CANDIDATES):
            other = (row + draw.randint(1, _MAX_DISTANCE)) % self.num_pairs
            has_room = all(
                first + second <= limit
                for first, second, limit in map(
                    tuple, self.lengths(np.array([row, other, index]))
                )
            )
            if has_room and self._can_join(row, other):
                return [other]
        return []

    def _can_join(self, row, other):
        """Returns whether two rows are different pairs of one corpus and one tag."""
        if row // self._num_segmentations == other // self._num_segmentations:
            return False
        parts = self._parts(self.numbers(np.array([row, other])))
        return parts[0] == parts[1] and self._split(row)[0] == self._split(other)[0]

    def _decode(self, side, rows):
        ids, lengths = np.concatenate(rows).astype(np.int32), [*map(len, rows)]
        ids = tf.RaggedTensor.from_row_lengths(ids, lengths, validate=False)
        return [text.decode() for text in self._join[side](ids).numpy()]

    def _encode(self, side, texts):
        rows = self._tokenize[side](tf.constant(texts)).to_list()
        end_id = (self._tokenizer.source, self._tokenizer.target)[side].end_id
        return [[*row, end_id] for row in rows]
