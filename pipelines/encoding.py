"""A corpus tokenised once, kept on disk as memory-mapped arrays of ids."""

import contextlib
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from keras_transformer.errors import DataError
from keras_transformer.pipelines.chunks import blocks
from keras_transformer.pipelines.growing_array import GrowingArray
from keras_transformer.pipelines.sources.base import Pair
from keras_transformer.pipelines.sources.base import Pairs
from keras_transformer.pipelines.sources.base import as_pairs
from keras_transformer.pipelines.tokenizers.base import Tokenizer

_FORMAT = 3
_BLOCK_PAIRS = 8192
_NAMED_LINES = 5
_SIDES = ("source", "target")
_DROPPED = "dropped.npy"
_REASONS = {
    "invalid_utf8": "not UTF-8",
    "empty": "with an empty side",
    "too_long": "longer than data.max_length",
}

_MISREAD = (TypeError, AttributeError, RecursionError, OverflowError)


class EncodedCorpus:
    """Sentence pairs as ids, in the order of the text; written by `encode_corpus`.

    Attributes:
        num_pairs: the number of rows: of pairs kept, each in every segmentation.
        source_lengths: int32 array [num_pairs], the end id counted.
        target_lengths: int32 array [num_pairs], the end id counted.
        dropped: for each reason ("invalid_utf8", "empty", "too_long") a dict of the
            `count` and the first places (`first`: "file:line", or "pair 7").
        report: one line that says what was kept and what was dropped.
        weights: float array [num_pairs], how many times an epoch of training holds
            each row. None, as it is until set: once.
    """

    weights = None

    def __init__(self, folder: str | os.PathLike):
        self.folder = os.fspath(folder)
        with open(os.path.join(folder, "corpus.json"), encoding="utf-8") as file:
            facts = json.load(file)
        self.num_pairs = facts["num_pairs"] * facts["segmentations"]
        self._segmentations = facts["segmentations"]
        self.dropped = facts["dropped"]
        self.report = _report(facts)
        self.fingerprint = facts["fingerprint"]
        self._dropped = np.load(os.path.join(folder, _DROPPED), mmap_mode="r")
        self._ids = {}
        self._offsets = {}
        for side in _SIDES:
            self._ids[side] = np.load(self._path(side, "ids"), mmap_mode="r")
            self._offsets[side] = np.load(self._path(side, "offsets"), mmap_mode="r")
        self.source_lengths, self.target_lengths = (
            self._lengths(side) for side in _SIDES
        )

    @classmethod
    def load(cls, folder: str | os.PathLike) -> "EncodedCorpus":
        """Open what `encode_corpus` wrote.

        Raises:
            DataError: the folder holds no corpus, or a damaged one.
        """
        try:
            return cls(folder)
        # Whatever reading JSON and arrays that somebody altered may raise.
        except (OSError, EOFError, ValueError, LookupError, *_MISREAD) as error:
            raise DataError(
                f"{os.fspath(folder)}: no encoded corpus here ({error})."
            ) from None

    def pair(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """The ids of a pair, source and target, int32, each with its end id."""
        index = range(self.num_pairs)[index]
        return tuple(
            np.asarray(
                self._ids[side][slice(*self._offsets[side][index : index + 2])],
                np.int32,
            )
            for side in _SIDES
        )

    def numbers(self, indices: np.ndarray) -> np.ndarray:
        """The places of pairs in the text: int64 array, counted from 1.

        Args:
            indices: int array of rows, counted from 0.
        """
        indices = indices // self._segmentations
        # Before the i-th dropped pair, dropped[i] - i pairs were kept.
        kept_before = self._dropped - np.arange(len(self._dropped))
        return indices + np.searchsorted(kept_before, indices, side="right") + 1

    def rows_outside(self, size: int) -> np.ndarray:
        """The rows whose target has an id from `size` on."""
        places = np.flatnonzero(self._ids["target"] >= size)
        return np.unique(np.searchsorted(self._offsets["target"], places, "right") - 1)

    def rows(self, side: str, indices: np.ndarray, length: int) -> np.ndarray:
        """Gather padded rows: int32 array [len(indices), length].

        Args:
            side: "source" or "target".
            indices: int array of pairs.
            length: the width, at least the longest row's.
        """
        starts = self._offsets[side][indices]
        lengths = self._offsets[side][indices + 1] - starts
        rows = np.zeros((len(indices), length), np.int32)
        real = np.arange(length) < lengths[:, np.newaxis]
        positions = starts[:, np.newaxis] + np.arange(length)
        rows[real] = self._ids[side][positions[real]]
        return rows

    def _lengths(self, side: str) -> np.ndarray:
        """The lengths of a side's rows, if all of them are in its file."""
        ids, offsets = self._ids[side], self._offsets[side]
        lengths = np.diff(offsets)
        arrays = ids, offsets, self._dropped
        if (
            any(each.ndim != 1 or each.dtype.kind not in "iu" for each in arrays)
            or type(self.num_pairs) is not int
            or len(offsets) != self.num_pairs + 1
            or (offsets[0], offsets[-1]) != (0, len(ids))
            or (lengths < 1).any()
        ):
            raise ValueError(f"{side}_offsets.npy does not fit {side}_ids.npy")
        return lengths.astype(np.int32)

    def _path(self, side: str, what: str) -> str:
        return os.path.join(self.folder, f"{side}_{what}.npy")


def encode_corpus(
    pairs: Pairs | Iterable[Pair],
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    folder: str | os.PathLike,
    max_length: int = 256,
    dropout: float = 0.0,
    segmentations: int = 1,
    seed: int = 1,
) -> EncodedCorpus:
    """Tokenise pairs once and keep their ids in `folder`.

    With `dropout`, each pair is kept in several random segmentations, and an epoch
    holds them all.

    If the folder already holds the same text (as the source's `fingerprint()` tells;
    None: it cannot tell) encoded with the same tokenizers and `max_length`, it is
    opened as it is.

    Args:
        pairs: a source, any iterable of (source, target) texts, or a `RecordFolder`.
        source_tokenizer: for the source texts.
        target_tokenizer: for the target texts; the same object where shared.
        folder: where to write; what it held is replaced.
        max_length: pairs with a side of more ids than this, its end id counted,
            are dropped.
        dropout: probability that a merge of sub-words is left out, see
            `Tokenizer.sample`; for training text.
        segmentations: how many each pair is kept in; 1 without dropout.
        seed: of the dropout.

    Raises:
        DataError: the text cannot be read, no pair is left, or the tokenizer has no
            merges to leave out.
    """
    if not dropout and segmentations > 1:
        raise ValueError("More than one segmentation needs `dropout`.")
    pairs = as_pairs(pairs)
    sampling = (dropout, segmentations, seed) if dropout else None
    fingerprint = _fingerprint(
        pairs, source_tokenizer, target_tokenizer, max_length, sampling
    )
    if fingerprint is not None:
        try:
            corpus = EncodedCorpus.load(folder)
        except DataError:
            pass
        else:
            if corpus.fingerprint == fingerprint:
                return corpus
    temporary = f"{os.fspath(folder)}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    os.makedirs(temporary)
    try:
        id_chunks = pairs.id_chunks(source_tokenizer)
        facts = _write_corpus(
            _text_blocks(pairs, (source_tokenizer, target_tokenizer), sampling)
            if id_chunks is None
            else _id_blocks(id_chunks),
            pairs.locate,
            (source_tokenizer, target_tokenizer),
            temporary,
            max_length,
        )
        facts["fingerprint"] = fingerprint
        facts["segmentations"] = segmentations
        with open(os.path.join(temporary, "corpus.json"), "w", encoding="utf-8") as out:
            json.dump(facts, out, indent=1)
        if not facts["num_pairs"]:
            raise DataError(
                f"no training examples: {_report(facts)}. "
                f"Received: data.max_length={max_length}."
            )
        _remove_corpus(folder)
        os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return EncodedCorpus(folder)


def _remove_corpus(folder: str | os.PathLike) -> None:
    """Remove an older corpus, and nothing that somebody else keeps there."""
    if not os.path.isdir(folder):
        return
    names = [f"{side}_{what}.npy" for side in _SIDES for what in ("ids", "offsets")]
    for name in ["corpus.json", _DROPPED, *names]:
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(folder, name))
    try:
        os.rmdir(folder)
    except OSError:
        raise DataError(
            f"{os.fspath(folder)}: holds other files; token ids need a folder of "
            "their own."
        ) from None


def _report(facts: dict) -> str:
    dropped = [
        f"{reason['count']:,} {_REASONS[name]} ({', '.join(reason['first'])}"
        + (", ...)" if reason["count"] > len(reason["first"]) else ")")
        for name, reason in facts["dropped"].items()
        if reason["count"]
    ]
    kept = f"{facts['num_pairs']:,} of {facts['num_read']:,} pairs kept"
    if facts.get("segmentations", 1) > 1:
        kept += f", each in {facts['segmentations']} segmentations"
    return "; dropped: ".join([kept, *filter(None, ["; ".join(dropped)])])


def _fingerprint(
    pairs, source_tokenizer, target_tokenizer, max_length, sampling
) -> str | None:
    text = pairs.fingerprint()
    if text is None:
        return None
    facts = [
        _FORMAT,
        text,
        source_tokenizer.fingerprint(),
        target_tokenizer.fingerprint(),
        max_length,
        sampling,
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _text_blocks(pairs, tokenizers, sampling):
    """Yield blocks of a text: why each pair is left out, "" for not at all, and of
    each side a list of segmentations, RaggedTensors int32 [block, (length)]."""
    num_read = 0
    for block in blocks(pairs, _BLOCK_PAIRS):
        reasons = np.full(len(block), "", object)
        sides = ([], [])
        for number, pair in enumerate(block):
            texts = [_utf8(text) for text in pair]
            if None in texts:
                reasons[number] = "invalid_utf8"
            elif not all(text.strip() for text in pair):
                reasons[number] = "empty"
            for side, text in zip(sides, texts, strict=True):
                side.append(text or b"")
        yield (
            reasons,
            [
                _segmented(tokenizer, side, sampling, [num_read, number])
                for number, (tokenizer, side) in enumerate(
                    zip(tokenizers, sides, strict=True)
                )
            ],
        )
        num_read += len(block)


def _id_blocks(id_chunks):
    """Yield the like of ids that are there already."""
    for sides in id_chunks:
        empty = np.any([side.row_lengths().numpy() == 0 for side in sides], axis=0)
        reasons = np.where(empty, "empty", "").astype(object)
        yield reasons, [[side] for side in sides]


def _write_corpus(
    encoded_blocks,
    locate,
    tokenizers: tuple[Tokenizer, Tokenizer],
    folder: str,
    max_length: int,
) -> dict:
    """Write ids and offsets of both sides; return the counts."""
    dropped = {reason: {"count": 0, "first": []} for reason in _REASONS}
    num_read = 0
    dropped_pairs = GrowingArray(os.path.join(folder, _DROPPED), np.int64)
    files = [
        _IdsFile(folder, side, tokenizer.vocabulary_size)
        for side, tokenizer in zip(_SIDES, tokenizers, strict=True)
    ]
    for reasons, ragged in encoded_blocks:
        for segmented in itertools.chain(*ragged):
            too_long = segmented.row_lengths().numpy() + 1 > max_length
            reasons[too_long & (reasons == "")] = "too_long"
        dropped_pairs.append(num_read + np.flatnonzero(reasons != ""))
        for number in np.flatnonzero(reasons != ""):
            facts = dropped[reasons[number]]
            facts["count"] += 1
            if len(facts["first"]) < _NAMED_LINES:
                facts["first"].append(locate(num_read + int(number) + 1))
        for file, tokenizer, side in zip(files, tokenizers, ragged, strict=True):
            # A pair's segmentations stand together: row i is of pair i // count.
            rows = np.arange(len(reasons) * len(side))
            rows = rows.reshape(len(side), -1).T.ravel()
            kept = np.repeat(reasons == "", len(side))
            file.append(tf.gather(tf.concat(side, 0), rows), kept, tokenizer.end_id)
        num_read += len(reasons)
    for file in (*files, dropped_pairs):
        file.close()
    num_pairs = num_read - sum(facts["count"] for facts in dropped.values())
    return {"num_read": num_read, "num_pairs": num_pairs, "dropped": dropped}


def _segmented(tokenizer, texts, sampling, place) -> list[tf.RaggedTensor]:
    """Ids of a block's texts in every segmentation; `place` seeds the sampling."""
    if sampling is None:
        return [tokenizer.tokenize(tf.constant(texts))]
    dropout, segmentations, seed = sampling
    texts = [text.decode() for text in texts]
    seeds = np.random.SeedSequence([seed, *place]).generate_state(segmentations)
    return [tokenizer.sample(texts, dropout, int(seed)) for seed in seeds]


def _utf8(text: str | None) -> bytes | None:
    """The text's bytes; None where it has none, as for half a surrogate pair."""
    try:
        return None if text is None else text.encode()
    except UnicodeEncodeError:
        return None


class _IdsFile:
    """Appends rows of ids to a flat array on disk, and the rows' offsets to another."""

    def __init__(self, folder: str, side: str, vocabulary_size: int):
        dtype = np.uint16 if vocabulary_size <= 1 << 16 else np.int32
        self._ids = GrowingArray(os.path.join(folder, f"{side}_ids.npy"), dtype)
        path = os.path.join(folder, f"{side}_offsets.npy")
        self._offsets = GrowingArray(path, np.int64)
        self._offsets.append(np.zeros(1, np.int64))
        self._end = 0

    def append(self, ragged: tf.RaggedTensor, kept: np.ndarray, end_id: int) -> None:
        lengths = ragged.row_lengths().numpy()
        ids = ragged.flat_values.numpy()[np.repeat(kept, lengths)]
        ends = np.cumsum(lengths[kept])
        self._ids.append(np.insert(ids, ends, end_id))
        offsets = self._end + np.cumsum(lengths[kept] + 1)
        self._offsets.append(offsets)
        self._end = int(offsets[-1]) if len(offsets) else self._end

    def close(self) -> None:
        self._ids.close()
        self._offsets.close()
