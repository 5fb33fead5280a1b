"""Extends an existing BPE vocabulary with merges learned from new text.

SentencePiece splits a word by merging neighboring pieces. It always merges the pair
whose result has the highest score. New pieces get scores below all existing scores, in
the order of learning. The old merges are therefore applied first, and the new merges
are applied to the result. Old pieces keep their ids, and texts without new pieces are
split as before.
"""

import heapq
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from sentencepiece.sentencepiece_model_pb2 import ModelProto

from keras_transformer.errors import DataError
from keras_transformer.pipelines.tokenizers.bpe_dropout import apply_merges
from keras_transformer.pipelines.tokenizers.byte_pairs import BytePairTokenizer, escape
from keras_transformer.pipelines.tokenizers.model_check import (
    SPACE_MARK,
    Piece,
    byte_ids,
    pieces_by_type,
)
from keras_transformer.pipelines.tokenizers.normalization import normalize_texts

_WORD = re.compile(f"{SPACE_MARK}[^{SPACE_MARK}]+")
# Class of combining marks that go with letters of any script, such as accents.
_ANY = "any"
# Rarer characters and pairs are not learned.
_MIN_COUNT = 2


class ExtendedBpe(NamedTuple):
    """A tokenizer with new pieces, and the old ids that spell each new piece."""

    tokenizer: BytePairTokenizer
    replaced: list[list[int]]


def extend_bpe(
    tokenizer: BytePairTokenizer, sentences: Iterable[str | None], num_pieces: int
) -> ExtendedBpe:
    """Learns additional subwords from new text.

    Missing characters are added first, up to the character coverage that the old
    vocabulary was trained for. Merges of neighbors follow, the most frequent first. The
    text may provide fewer than `num_pieces` pieces.
    """
    if not tokenizer.has_merges:
        raise DataError("only a SentencePiece model of type BPE can be extended")
    model = ModelProto.FromString(tokenizer.model)
    counts = Counter()
    known = (each for each in sentences if each is not None)
    for sentence in normalize_texts(known, tokenizer.text):
        counts.update(
            _WORD.findall(SPACE_MARK + escape(sentence).replace(" ", SPACE_MARK))
        )
    learner = _Learner(model, counts)
    learner.add_characters(num_pieces)
    while len(learner.replaced) < num_pieces and learner.add_pair():
        pass
    lowest = min(piece.score for piece in model.pieces)
    for number, piece in enumerate(learner.replaced, start=1):
        model.pieces.append(
            Piece(piece=piece, score=lowest - number, type=Piece.NORMAL)
        )
    model.trainer_spec.vocab_size = len(model.pieces)
    extended = BytePairTokenizer(model.SerializeToString())
    extended.text = tokenizer.text
    return ExtendedBpe(extended, list(learner.replaced.values()))


class _Learner:
    """The words of a text in their current split, and the counts of neighbor pairs."""

    def __init__(self, model, counts):
        self._spec = model.trainer_spec
        pieces = pieces_by_type(model)
        self._ids, self._byte_ids = pieces[Piece.NORMAL], byte_ids(pieces)
        # Ranks of the pieces that a merge may produce (see `apply_merges`).
        self._ranks = {each: -model.pieces[at].score for each, at in self._ids.items()}
        # SentencePiece finds user-defined pieces before any merge. Words that contain
        # such a piece are skipped.
        fixed = pieces[Piece.USER_DEFINED]
        self._counts, self._words = [], []
        for word, count in counts.items():
            if not any(piece in word for piece in fixed):
                self._counts.append(count)
                self._words.append(apply_merges(word, self._ranks)[0])
        self._highest_rank = max(self._ranks.values(), default=0.0)
        # Maps the new pieces, in the order of learning, to the old ids that spell them.
        self.replaced = {}
        self._pairs = Counter()
        self._places = {}  # indices of the words that contain or contained each pair
        self._heap = []

    def add_characters(self, max_pieces):
        """Adds up to `max_pieces` pieces for characters that were encoded as bytes."""
        characters = Counter()
        for word, count in zip(self._words, self._counts, strict=True):
            for character in "".join(word):
                characters[character] += count
        max_uncovered = (1 - self._spec.character_coverage) * characters.total()
        missing = {
            character: count
            for character, count in characters.items()
            if character not in self._ranks and count >= _MIN_COUNT
        }
        uncovered = sum(missing.values())
        for character in sorted(missing, key=lambda c: (-missing[c], c)):
            if len(self.replaced) == max_pieces or uncovered <= max_uncovered:
                break
            uncovered -= missing[character]
            self._add(character, [self._byte_ids[byte] for byte in character.encode()])
        for number in range(len(self._words)):
            self._count_pairs(number, 1)

    def add_pair(self):
        """Adds a piece for the most frequent pair. Returns whether there was a pair."""
        while self._heap:
            count, left, right = heapq.heappop(self._heap)
            current_count = self._pairs[left, right]
            if -count != current_count:  # the count is out of date
                if current_count >= _MIN_COUNT:
                    heapq.heappush(self._heap, (-current_count, left, right))
                continue
            if left + right in self._ranks:
                continue  # another pair produced the same piece
            spelling = [*self._spelling(left), *self._spelling(right)]
            self._add(left + right, spelling)
            for number in sorted(self._places.pop((left, right))):
                self._count_pairs(number, -1)
                self._words[number], _ = apply_merges(self._words[number], self._ranks)
                self._count_pairs(number, 1)
            return True
        return False

    def _add(self, piece, spelling):
        self.replaced[piece] = spelling
        self._ranks[piece] = self._highest_rank + len(self.replaced)

    def _spelling(self, piece):
        return self.replaced.get(piece) or [self._ids[piece]]

    def _count_pairs(self, number, sign):
        """Adds the pairs of a word to the counts (sign 1), or subtracts them (-1)."""
        word = self._words[number]
        for pair in itertools.pairwise(word):
            if not self._may_merge(*pair):
                continue
            self._pairs[pair] += sign * self._counts[number]
            if sign > 0:
                self._places.setdefault(pair, set()).add(number)
                if self._pairs[pair] >= _MIN_COUNT:
                    heapq.heappush(self._heap, (-self._pairs[pair], *pair))

    def _may_merge(self, left, right):
        """Returns whether SentencePiece's training would allow the merged piece."""
        joined = left + right
        letters = joined.removeprefix(SPACE_MARK)
        if len(joined) > self._spec.max_sentencepiece_length or SPACE_MARK in letters:
            return False
        if any(piece not in self._ranks for piece in (left, right)):
            return False  # a character that is encoded as bytes
        kinds = set(map(_kind, letters)) - {_ANY}
        return len(kinds) <= 1 and not ("N" in kinds and self._spec.split_digits)


def _kind(character):
    """Returns the class of a character. For letters and marks, it is the script.

    A piece has characters of one class only. As in SentencePiece, the Japanese scripts
    are one class, and a combining mark without a script goes with any class.
    """
    category = unicodedata.category(character)[0]
    if category == "N":
        return "N"
    if category not in ("L", "M"):
        return "other"
    words = re.split("[ -]", unicodedata.name(character, "unknown"))
    if words[0] in ("FULLWIDTH", "HALFWIDTH"):
        words = words[1:]
    if category == "M" and words[0] in ("COMBINING", "VARIATION"):
        return _ANY
    return "CJK" if words[0] in ("HIRAGANA", "KATAKANA") else words[0]
