"""Reproducible BPE-dropout: the same seed gives the same ids in every process.

SentencePiece itself draws other numbers in each process, also with a seed (version
0.2.3, which salts its generator). This module applies merges in SentencePiece's order,
but draws from NumPy's Philox generator, whose raw output depends on the seed alone.

Splitting a word begins with its symbols: single characters and user-defined pieces. A
merge joins two neighbors.
"""

import functools
import heapq
import itertools
import re
from typing import NamedTuple

import numpy as np
import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from keras_transformer.errors import DataError
from keras_transformer.pipelines.tokenizers.model_check import (
    SPACE_MARK,
    Piece,
    byte_ids,
    pieces_by_type,
)

_MAX_CACHED = 100_000  # words


class _Word(NamedTuple):
    symbols: tuple[str, ...]
    ids: list[int]  # without dropout
    num_merges: int  # that are tried without dropout


class BpeDropout:
    """Sampler that skips merges of a SentencePiece model at random.

    Each merge is skipped with probability `dropout` when its turn comes (Provilkov et
    al., ACL 2020). `model` is the content of a SentencePiece model file with byte
    fallback.
    """

    def __init__(self, model: bytes):
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        model = ModelProto.FromString(model)
        if model.trainer_spec.model_type != model.trainer_spec.BPE:
            raise DataError(
                "tokenizer.bpe_dropout must be 0 unless the SentencePiece model is of "
                "type BPE"
            )
        pieces = pieces_by_type(model)
        normal, fixed = pieces[Piece.NORMAL], pieces[Piece.USER_DEFINED]
        self._fixed = fixed.keys()
        self._ids, self._byte_ids = normal | fixed, byte_ids(pieces)
        self._ranks = {each: -model.pieces[at].score for each, at in normal.items()}
        # User-defined pieces are symbols that no merge joins. SentencePiece finds the
        # longest of them first. All other symbols are single characters.
        longest_first = sorted(fixed, key=len, reverse=True)
        self._symbol = re.compile("|".join([*map(re.escape, longest_first), "(?s:.)"]))
        # If a piece may contain several words, texts are not divided.
        spans_words = any(SPACE_MARK in piece[1:] for piece in self._ids)
        words = f"{SPACE_MARK}[^{SPACE_MARK}]*|[^{SPACE_MARK}]+"
        self._words = re.compile("(?s:.+)" if spans_words else words)
        self._word = functools.lru_cache(_MAX_CACHED)(self._look_up)

    def sample(self, texts, dropout, seed):
        """Splits texts (list of str, escaped) into subwords at random.

        Returns the ids of all texts in sequence, an int32 array, and the number of ids
        of each text, int64 `[batch]`.
        """
        rows = [
            [*map(self._word, self._words.findall(text))]
            for text in self._processor.normalize(texts)
        ]
        words = list(itertools.chain.from_iterable(rows))
        ids = [word.ids for word in words]
        for number, skips in _draw(words, dropout, seed).items():
            ids[number], _ = self._merge(words[number].symbols, skips)
        text_bounds = np.cumsum([0, *map(len, rows)])
        lengths = np.diff(np.cumsum([0, *map(len, ids)])[text_bounds])
        return np.fromiter(itertools.chain.from_iterable(ids), np.int32), lengths

    def _look_up(self, word: str):
        symbols = tuple(self._symbol.findall(word))
        return _Word(symbols, *self._merge(symbols, ()))

    def _merge(self, symbols, skips):
        """Returns ids without some merges, and the number of merges that are tried."""
        ids = []
        pieces, tried = apply_merges(symbols, self._ranks, self._fixed, skips)
        for piece in pieces:
            if piece in self._ids:
                ids.append(self._ids[piece])
            else:
                ids += [self._byte_ids[byte] for byte in piece.encode()]
        return ids, tried


def apply_merges(symbols, ranks, fixed=frozenset(), skips=()):
    """Merges symbols in SentencePiece's order: lowest rank first, then leftmost.

    `ranks` maps the results of merges to their ranks (minus the scores). Symbols in
    `fixed` are not merged. `skips` are the numbers of the merges to skip, in the order
    in which they are tried. Returns the symbols, and the number of tried merges.
    """
    symbols = list(symbols)
    following = [*range(1, len(symbols)), -1]
    previous = list(range(-1, len(symbols) - 1))
    heap = []

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
        first, second = symbols[left], symbols[right]
        # Skip pairs in which an earlier merge has changed a symbol.
        if not (first and second and first + second == joined):
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
    return list(filter(None, symbols)), tried


def _draw(words, dropout, seed):
    """Draws the merges to skip: {index of a word: their sorted numbers}, in order.

    Words whose split does not change have no entry.
    """
    # Each word gets a random number for each merge that might be tried: n symbols have
    # n - 1 pairs and at most n - 1 merges, each of which creates at most two new pairs.
    max_merges = [3 * (len(word.symbols) - 1) for word in words]
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
