"""Reproducible BPE-dropout: the same seed gives the same ids in every process.

SentencePiece itself draws other numbers in each process, also with a seed (version
0.2.3, which salts its generator). This module applies merges in SentencePiece's order,
but draws from NumPy's Philox generator, whose raw output depends on the seed alone.

Splitting a word begins with its symbols: single characters and user-defined pieces. A
merge joins two neighbors.
"""

import heapq
import itertools
import re
from dataclasses import dataclass, field

import numpy as np
import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from keras_transformer.errors import DataError
from keras_transformer.pipelines.tokenizers.model_check import (
    SPACE_MARK,
    spelled_bytes,
)

# Splits of words with more symbols rarely repeat, so they are not cached.
_MAX_CACHED_SYMBOLS = 32
# Limits the memory of cached splits to about 100 MB.
_MAX_SPLITS = 200_000


@dataclass(slots=True)
class _Split:
    """A split of a word after some merges were skipped."""

    ids: np.ndarray  # int32
    num_merges: int  # that were tried, including skipped ones
    # Maps the number of a later merge to the split that also skips this merge.
    following: dict = field(default_factory=dict)
    symbols: list = ()  # of the word, if no merge was skipped

    @property
    def max_merges(self):
        # n symbols have n - 1 pairs and at most n - 1 merges, each of which creates at
        # most two new pairs. Each pair is tried at most once.
        return 3 * (len(self.symbols) - 1)


class BpeDropout:
    """Sampler that skips merges of a SentencePiece model at random.

    Each merge is skipped with probability `dropout` when its turn comes (Provilkov et
    al., ACL 2020). SentencePiece itself splits the texts first. Only words in which a
    merge is skipped are split again.

    Args:
        model: Content of a SentencePiece model file with byte fallback.
    """

    def __init__(self, model: bytes):
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._merges = Merges(model)
        self._words = {}  # maps a word's ids without dropout, as bytes, to its `_Split`
        self._num_splits = 0

    def sample(self, texts, dropout, seed):
        """Splits texts (list of str, escaped) into subwords at random.

        Returns:
            ids: int32 array, the ids of all texts in sequence.
            lengths: int64 array `[batch]`, the number of ids per text.
        """
        rows = self._processor.encode(texts)
        lengths = np.array([len(row) for row in rows], np.int64)
        ids = np.fromiter(itertools.chain.from_iterable(rows), np.int32, lengths.sum())
        text_starts = np.cumsum(lengths) - lengths
        begins = np.zeros(len(ids) + 1, bool)  # whether each id begins a word
        if not self._merges.span_words:
            begins[:-1] = self._merges.begins_word[ids]
        begins[text_starts] = True
        starts = np.flatnonzero(begins[:-1])
        bounds = [*starts.tolist(), len(ids)]
        words = self._look_up(ids, bounds)
        skipped = _draw(words, dropout, seed)
        parts, end = [], 0
        # For each word to split again, the index of its text.
        first_words = np.searchsorted(starts, text_starts)
        in_text = np.searchsorted(first_words, list(skipped), side="right") - 1
        for (number, skips), text in zip(skipped.items(), in_text, strict=True):
            new = self._split(words[number], skips)
            start, after = bounds[number : number + 2]
            parts += [ids[end:start], new]
            lengths[text] += len(new) - (after - start)
            end = after
        return np.concatenate([*parts, ids[end:]], dtype=np.int32), lengths

    def _look_up(self, ids, bounds):
        """Returns the `_Split` of each word without dropout."""
        if self._num_splits > _MAX_SPLITS:
            self._words.clear()
            self._num_splits = 0
        content, size = ids.tobytes(), ids.itemsize
        found = []
        for start, end in itertools.pairwise(bounds):
            key = content[start * size : end * size]
            word = self._words.get(key)
            if word is None:
                word = self._words[key] = self._merges.exact_split(ids[start:end])
                self._num_splits += 1
            found.append(word)
        return found

    def _split(self, word, skips):
        """Returns the ids of a word without the merges numbered `skips`, sorted."""
        if len(word.symbols) > _MAX_CACHED_SYMBOLS:
            return self._merges.split(word.symbols, skips).ids
        # Cached splits are a tree, in which each level skips one more merge.
        split = word
        for depth, skip in enumerate(skips, start=1):
            if skip >= split.num_merges:
                break
            if skip not in split.following:
                following = self._merges.split(word.symbols, skips[:depth])
                split.following[skip] = following
                self._num_splits += 1
            split = split.following[skip]
        return split.ids


class Merges:
    """The merges of a SentencePiece BPE model.

    Attributes:
        begins_word: bool `[vocabulary_size]`, whether each subword begins with a space.
        span_words: Whether any subword has a space after its first character.
    """

    def __init__(self, model: bytes):
        model = ModelProto.FromString(model)
        if model.trainer_spec.model_type != model.trainer_spec.BPE:
            raise DataError(
                "tokenizer.dropout must be 0 unless the SentencePiece model is of type "
                "BPE."
            )
        self._bytes = [
            spelled_bytes(piece) if piece.type == piece.BYTE else piece.piece.encode()
            for piece in model.pieces
        ]
        self._ids, self._byte_ids, self._ranks, fixed = {}, {}, {}, []
        for number, piece in enumerate(model.pieces):
            if piece.type == piece.BYTE:
                self._byte_ids[self._bytes[number][0]] = number
            elif piece.type == piece.NORMAL:
                self._ids[piece.piece] = number
                self._ranks[piece.piece] = -piece.score
            elif piece.type == piece.USER_DEFINED:
                self._ids[piece.piece] = number
                fixed.append(piece.piece)
        # User-defined pieces are symbols that no merge joins. SentencePiece finds the
        # longest of them first. All other symbols are single characters.
        self._fixed = frozenset(fixed)
        longest_first = sorted(fixed, key=len, reverse=True)
        self._symbol = re.compile("|".join([*map(re.escape, longest_first), "(?s:.)"]))
        self.begins_word = np.array([p.piece[:1] == SPACE_MARK for p in model.pieces])
        self.span_words = any(SPACE_MARK in piece[1:] for piece in self._ids)

    def exact_split(self, ids):
        """Returns the split of a word that SentencePiece split into `ids`."""
        spelled = [self._bytes[number] for number in ids]
        symbols = self._symbol.findall(b"".join(spelled).decode())
        # All bytes of one character count as one subword. Each merge removes a symbol.
        num_pieces = sum(each[0] & 0xC0 != 0x80 for each in spelled)
        return _Split(ids.copy(), len(symbols) - num_pieces, symbols=symbols)

    def split(self, symbols, skips=()):
        """Merges symbols in SentencePiece's order: highest score, then leftmost.

        `skips` are the numbers of the merges to skip, counted from 0 in the order in
        which merges are tried.
        """
        symbols, skips = list(symbols), set(skips)
        following = [*range(1, len(symbols)), -1]
        previous = list(range(-1, len(symbols) - 1))
        ranks, fixed, heap = self._ranks, self._fixed, []

        def push(left, right):
            joined = symbols[left] + symbols[right]
            rank = ranks.get(joined)
            if rank is not None and fixed.isdisjoint((symbols[left], symbols[right])):
                heapq.heappush(heap, (rank, left, right, joined))

        for left in range(len(symbols) - 1):
            push(left, left + 1)
        tried = 0
        while heap:
            _, left, right, joined = heapq.heappop(heap)
            # Skip pairs in which an earlier merge has changed a symbol.
            if not symbols[left] or not symbols[right]:
                continue
            if symbols[left] + symbols[right] != joined:
                continue
            tried += 1
            if tried - 1 in skips:
                continue
            symbols[left], symbols[right] = joined, ""
            following[left] = following[right]
            if following[left] >= 0:
                previous[following[left]] = left
                push(left, following[left])
            if previous[left] >= 0:
                push(previous[left], left)
        return _Split(self._spell(filter(None, symbols)), tried)

    def _spell(self, pieces):
        ids = []
        for piece in pieces:
            number = self._ids.get(piece)
            if number is not None:
                ids.append(number)
            else:
                ids += [self._byte_ids[byte] for byte in piece.encode()]
        return np.array(ids, np.int32)


def _draw(words, dropout, seed):
    """Draws the merges to skip.

    Each word gets `max_merges` random numbers, one for each merge that might be tried.
    Returns a dict with an entry per word whose split changes, in the order of words. It
    maps the index of the word to the sorted numbers of the merges to skip.
    """
    max_merges = [word.max_merges for word in words]
    ends = np.cumsum(max_merges, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    raw = np.random.Philox(seed).random_raw((total + 1) // 2)
    numbers = raw.astype("<u8").view("<u4")[:total]
    places = np.flatnonzero(numbers < min(round(dropout * 2**32), 2**32 - 1))
    owners = np.searchsorted(ends, places, side="right")
    offsets = (ends - max_merges)[owners]
    skipped = {}
    for owner, skip in zip(owners.tolist(), (places - offsets).tolist(), strict=True):
        if owner in skipped:
            skipped[owner].append(skip)
        # Until its first skip, a word tries only `num_merges` merges. Its other random
        # numbers are not used.
        elif skip < words[owner].num_merges:
            skipped[owner] = [skip]
    return skipped
