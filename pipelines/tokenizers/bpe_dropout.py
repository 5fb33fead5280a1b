"""Reproducible BPE-dropout: the same seed gives the same ids in every process.

The results of SentencePiece's sampler depend on its version, and in newer versions also
on the process. This module applies merges in SentencePiece's order, but draws random
numbers from NumPy's Philox generator, whose raw output depends on the seed alone.

Splitting a word begins with its symbols: single characters and user-defined pieces. A
merge joins two neighbors.
"""

import heapq
import itertools
import re

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.errors import DataError
from keras_transformer.pipelines.tokenizers.base import SPACE_MARK

# Splits of words with more symbols rarely repeat, so they are not cached.
_MAX_CACHED_SYMBOLS = 32
# Limits the memory of cached splits to about 100 MB.
_MAX_SPLITS = 200_000


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
        self._words = {}  # maps a word's ids without dropout, as bytes, to its `_Word`
        self._num_splits = 0

    def sample(self, texts, dropout, seed):
        """Splits texts into subwords at random.

        Args:
            texts: List of str, escaped by `byte_pairs.escape`.
            dropout: Probability in [0, 1).
            seed: Non-negative integer. Equal seeds and texts give equal ids.

        Returns:
            ids: int32 array, the ids of all texts in sequence.
            lengths: int64 array `[batch]`, the number of ids per text.
        """
        rows = self._processor.encode(texts)
        lengths = np.array([len(row) for row in rows], np.int64)
        ids = np.fromiter(itertools.chain.from_iterable(rows), np.int32, lengths.sum())
        first_words, starts = self._word_starts(ids, lengths)
        words = self._look_up(ids, starts)
        skipped = _draw(words, dropout, seed)
        parts, end = [], 0
        bounds = np.append(starts, len(ids)).tolist()
        # For each word to split again, the index of its text.
        in_text = np.searchsorted(first_words, list(skipped), side="right") - 1
        for (number, skips), text in zip(skipped.items(), in_text, strict=True):
            new = self._split(words[number], skips)
            start, after = bounds[number : number + 2]
            parts += [ids[end:start], new]
            lengths[text] += len(new) - (after - start)
            end = after
        return np.concatenate([*parts, ids[end:]], dtype=np.int32), lengths

    def _word_starts(self, ids, lengths):
        """Returns the indices of each text's first word and of each word's first id."""
        begins = np.zeros(len(ids) + 1, bool)
        if not self._merges.span_words:
            begins[:-1] = self._merges.begins_word[ids]
        text_starts = np.cumsum(lengths) - lengths
        begins[text_starts] = True
        begins = begins[:-1]
        starts = np.flatnonzero(begins)
        return np.searchsorted(starts, text_starts), starts

    def _look_up(self, ids, starts):
        """Returns the `_Word` of each word."""
        if self._num_splits > _MAX_SPLITS:
            self._words.clear()
            self._num_splits = 0
        content = ids.tobytes()
        bounds = [*(ids.itemsize * starts).tolist(), len(content)]
        words, found = self._words, []
        for start, end in itertools.pairwise(bounds):
            key = content[start:end]
            word = words.get(key)
            if word is None:
                word = words[key] = _Word(self._merges, np.frombuffer(key, ids.dtype))
                self._num_splits += 1
            found.append(word)
        return found

    def _split(self, word, skips):
        """Splits a word without the merges numbered `skips`, a sorted list of ints."""
        if len(word.symbols) > _MAX_CACHED_SYMBOLS:
            return self._merges.split(word.symbols, skips)[0]
        # Cached splits are a tree, in which each level skips one more merge.
        split = word
        for depth, skip in enumerate(skips, start=1):
            if skip >= split.num_merges:
                break
            following = split.following.get(skip)
            if following is None:
                ids, tried = self._merges.split(word.symbols, skips[:depth])
                following = split.following[skip] = _Split(ids, tried)
                self._num_splits += 1
            split = following
        return split.ids


class _Split:
    """A split of a word after some merges were skipped.

    Attributes:
        ids: int32 array.
        num_merges: Number of merges that were tried, including skipped ones.
        following: Dict from the number of a later merge to the `_Split` that also skips
            this merge.
    """

    __slots__ = ("following", "ids", "num_merges")

    def __init__(self, ids, num_merges):
        self.ids = ids
        self.num_merges = num_merges
        self.following = {}


class _Word(_Split):
    """A word's symbols and its split without dropout."""

    __slots__ = ("max_merges", "symbols")

    def __init__(self, merges, ids):
        self.symbols = merges.symbols(ids)
        # Without dropout, each merge removes one symbol.
        super().__init__(ids, len(self.symbols) - merges.num_pieces(ids))
        # n symbols have n - 1 pairs and at most n - 1 merges, each of which creates at
        # most two new pairs. Each pair is tried at most once.
        self.max_merges = 3 * (len(self.symbols) - 1)


class Merges:
    """The merges of a SentencePiece BPE model.

    Args:
        model: Content of the model file.

    Attributes:
        begins_word: bool `[vocabulary_size]`, whether each subword begins with a space.
        span_words: Whether any subword has a space after its first character.

    Raises:
        DataError: If the model has no merges.
    """

    def __init__(self, model):
        model = sentencepiece_model_pb2.ModelProto.FromString(model)
        if model.trainer_spec.model_type != model.trainer_spec.BPE:
            raise DataError(
                "tokenizer.dropout must be 0 unless the SentencePiece model is of type "
                "BPE."
            )
        kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
        self._ids, self._ranks, self._bytes = {}, {}, []
        byte_ids, fixed = {}, []
        for number, piece in enumerate(model.pieces):
            content = piece.piece.encode()
            if piece.type == kinds.BYTE:
                content = bytes([int(piece.piece[3:5], 16)])
                byte_ids[content[0]] = number
            elif piece.type == kinds.NORMAL:
                self._ids[piece.piece] = number
                self._ranks[piece.piece] = -piece.score
            elif piece.type == kinds.USER_DEFINED:
                self._ids[piece.piece] = number
                fixed.append(piece.piece)
            self._bytes.append(content)
        self._byte_ids = byte_ids
        # User-defined pieces are symbols that no merge joins. SentencePiece finds the
        # longest of them first. All other symbols are single characters.
        self._fixed = frozenset(fixed)
        longest_first = sorted(fixed, key=len, reverse=True)
        self._symbol = re.compile("|".join([*map(re.escape, longest_first), "(?s:.)"]))
        self.begins_word = np.array([p.piece[:1] == SPACE_MARK for p in model.pieces])
        self.span_words = any(SPACE_MARK in piece[1:] for piece in self._ids)

    def symbols(self, ids):
        """Returns the list of symbols (str) that SentencePiece merged into ids."""
        text = b"".join([self._bytes[number] for number in ids]).decode()
        return self._symbol.findall(text)

    def num_pieces(self, ids):
        """Counts subwords. All bytes of one character count as one subword."""
        return sum(self._bytes[number][0] & 0xC0 != 0x80 for number in ids)

    def split(self, symbols, skips=()):
        """Merges symbols in SentencePiece's order: highest score, then leftmost.

        Args:
            symbols: List of str.
            skips: Numbers of the merges to skip, counted from 0 in the order in which
                merges are tried.

        Returns:
            ids: int32 array.
            tried: Number of merges that were tried, including skipped ones.
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
        return self._spell(filter(None, symbols)), tried

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

    Returns:
        Dict with an entry per word whose split changes, in the order of the words. It
        maps the index of the word to the sorted numbers of the merges to skip.
    """
    ends = np.cumsum([word.max_merges for word in words], dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    raw = np.random.Philox(seed).random_raw((total + 1) // 2)
    numbers = raw.astype("<u8").view("<u4")[:total]
    places = np.flatnonzero(numbers < min(round(dropout * 2**32), 2**32 - 1))
    owners = np.searchsorted(ends, places, side="right")
    offsets = (ends - [word.max_merges for word in words])[owners]
    skipped = {}
    for owner, skip in zip(owners.tolist(), (places - offsets).tolist(), strict=True):
        if owner in skipped:
            skipped[owner].append(skip)
        # Until its first skip, a word tries only `num_merges` merges. Its other random
        # numbers are not used.
        elif skip < words[owner].num_merges:
            skipped[owner] = [skip]
    return skipped
