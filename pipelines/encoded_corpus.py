"""Sentence pairs as ids on disk, read through memory maps."""

import os
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt

from keras_transformer.errors import DataError
from keras_transformer.pipelines.batching import Bucket, epoch_order, plan_buckets
from keras_transformer.pipelines.lines import LATIN_HINT
from keras_transformer.untrusted import read_json, require_regular

FACTS = "corpus.json"
# File with the dropped pairs' positions among all pairs read, counted from 0.
DROPPED = "dropped.npy"
SIDES = ("source", "target")
# Inputs for guided alignment: tokens of both sides are aligned if they have the same
# number, which is 0 for tokens without alignment.
GROUPS = ("source_groups", "target_groups")
# Maximum number of dropped pairs per reason whose locations are stored.
_MAX_LOCATIONS = 5
DROP_REASONS = {
    "invalid_utf8": "not UTF-8 on a side",
    "empty": "with an empty side",
    "too_long": "longer than data.max_length",
}


class _Dropped(BaseModel):
    count: NonNegativeInt
    first: list[str]


class _Facts(BaseModel):
    """Content of `corpus.json`."""

    model_config = ConfigDict(extra="allow")

    num_read: NonNegativeInt  # number of kept and dropped pairs
    # Number of kept pairs. The number of rows is `num_segmentations` times as large.
    num_pairs: PositiveInt
    num_identical: NonNegativeInt  # number of kept pairs with identical sides
    num_segmentations: PositiveInt
    dropped: dict[Literal[tuple(DROP_REASONS)], _Dropped]
    fingerprint: str | None  # hash of text, tokenizers and options
    ids: str  # hash of the ids
    pad_id: NonNegativeInt
    start_id: NonNegativeInt
    ends: list[NonNegativeInt] | None = None  # those of `MixedPairs`


def stored_ends(folder) -> list[int] | None:
    """Returns the `MixedPairs.ends` of an encoded corpus, or `None`."""
    return read_json(os.path.join(folder, FACTS), _Facts, error=DataError).ends


class EncodedCorpus:
    """Sentence pairs as ids, in the order in which `encode_corpus` read the pairs.

    A row is a pair of id sequences, source and target. With BPE-dropout, each pair can
    have several rows, one per segmentation (split of its texts into subwords).

    Args:
        folder: The folder that `encode_corpus` wrote.
        weights: Function that receives an array of pair numbers, from 1, and returns
            how often an epoch contains each of these pairs, a float array. Dropped
            pairs have numbers, too. If `None`, an epoch contains each row once.

    Attributes:
        num_pairs: Number of rows, which is the number of kept pairs times the number
            of segmentations.
        source_lengths: int32 array `[num_pairs]`, including end ids.
        target_lengths: int32 array `[num_pairs]`, including end ids.
        dropped: Dict from reasons ("invalid_utf8", "empty", "too_long") to dicts with
            `count` and `first`, a list of the first locations, such as "file:line" or
            "pair 7".
        fingerprint: Str that changes with the ids, and with the text, the tokenizers
            and the options if the source of the pairs has a fingerprint.
        report: A line with the numbers of kept and dropped pairs.
        pad_id: Id of padding.
        start_id: Id that begins the decoder's input.
        weights: float array `[num_pairs]`, the number of times that an epoch contains
            each row, or `None` for once each.

    Raises:
        DataError: If the folder contains no corpus.
        ValueError: If its files do not match each other.

    Examples:
        >>> pairs = [("12 euros", "12 Euro"), ("", "leer")]
        >>> tokenizer = kt.open_model("phrases").tokenizer
        >>> corpus = kt.pipelines.encode_corpus(pairs, tokenizer, tokenizer, "corpus")
        >>> corpus.num_pairs, corpus.target_lengths.tolist(), corpus.dropped["empty"]
        (1, [6], {'count': 1, 'first': ['pair 2']})
    """

    copies = ()  # noisy copies of rows that an epoch contains beside them

    def __init__(self, folder: str | os.PathLike, weights=None):
        self.folder = os.fspath(folder)
        path = os.path.join(folder, FACTS)
        facts = read_json(path, _Facts, error=DataError).model_dump()
        self.num_pairs = facts["num_pairs"] * facts["num_segmentations"]
        self._num_segmentations = facts["num_segmentations"]
        self.pad_id, self.start_id = facts["pad_id"], facts["start_id"]
        self.dropped = facts["dropped"]
        self.has_only_copies = facts["num_identical"] == facts["num_pairs"]
        self.report = corpus_report(facts)
        self.inputs = facts["fingerprint"]
        self.fingerprint = f"{self.inputs or ''}:{facts['ids']}"
        self._dropped = self._load(DROPPED, "i8")
        places = np.concatenate([[-1], self._dropped, [facts["num_read"]]])
        num_dropped = facts["num_read"] - facts["num_pairs"]
        if len(self._dropped) != num_dropped or not _is_increasing(places):
            raise ValueError(f"{DROPPED} does not match {FACTS}")
        self._ids, self._offsets = {}, {}
        for side in SIDES:
            ids, offsets = side_files(side)
            self._ids[side] = self._load(ids, "u2", "i4")
            self._offsets[side] = self._load(offsets, "i8")
        self._names = SIDES
        if os.path.exists(os.path.join(folder, group_file("source"))):
            for side, name in zip(SIDES, GROUPS, strict=True):
                self._ids[name] = self._load(group_file(side), "u2")
                if len(self._ids[name]) != len(self._ids[side]):
                    raise ValueError(f"{group_file(side)} does not match {FACTS}")
                self._offsets[name] = self._offsets[side]
            self._names = (*SIDES, *GROUPS)
        self.source_lengths, self.target_lengths = map(self._lengths, SIDES)
        self._plans = {}
        self.weights = None
        if weights is not None:
            self.weights = weights(self.numbers(np.arange(self.num_pairs)))

    @classmethod
    def load(cls, folder: str | os.PathLike, *arguments) -> "EncodedCorpus":
        """Opens a corpus that `encode_corpus` wrote. Arguments match the constructor.

        Returns:
            `EncodedCorpus`.

        Raises:
            DataError: If the folder contains no corpus, or if the corpus is damaged.
        """
        try:
            return cls(folder, *arguments)
        # Reading an altered array may raise any exception.
        except Exception as error:
            raise DataError(
                f"{os.fspath(folder)}: no readable encoded corpus ({error}). Encode "
                "the text again"
            ) from None

    def _load(self, name, *dtypes):
        """Maps a one-dimensional array of one of the `dtypes` into memory."""
        path = os.path.join(self.folder, name)
        require_regular([path], DataError)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if array.ndim != 1 or array.dtype not in map(np.dtype, dtypes):
            raise ValueError(
                f"{name} must be a one-dimensional array of {' or '.join(dtypes)}. "
                f"Received: {array.dtype}, shape {array.shape}"
            )
        return array

    def plan(self, batch_tokens: int, planner=plan_buckets):
        """Returns the buckets and the rows' numbers of buckets, computed once."""
        key = batch_tokens, planner
        if key not in self._plans:
            lengths = self.source_lengths, self.target_lengths
            options = {"weights": self.weights, "copies": self.copies}
            self._plans[key] = planner(*lengths, batch_tokens, **options)
        return self._plans[key]

    def epoch_order(self, plan, seed: int, epoch: int):
        """Returns the order of an epoch's rows, given a `plan`."""
        return epoch_order(*plan, seed, epoch, self.weights, self.copies)

    def lengths(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the source and the target lengths of rows, with end ids."""
        return self.source_lengths[rows], self.target_lengths[rows]

    def padded_batch(
        self,
        indices: np.ndarray,
        bucket: Bucket | None = None,
        multiple: int = 1,
        shard: tuple[int, int] = (0, 1),
        epoch: int = 0,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns source ids, target ids and labels, each int32 `[batch, length]`.

        If the corpus has alignments, the groups of the source ids and of the labels
        follow (see `training.same_groups`).

        Rows of padding are added up to the size of the bucket, if one is given, and
        until all shards together have a multiple of `multiple` rows. The noise of a
        `NoisyCorpus` depends on `epoch`.
        """
        num_rows = bucket.batch_size if bucket else len(indices)
        num_rows = -(-num_rows // multiple) * multiple // shard[1]
        if bucket:
            lengths = bucket.source_length, bucket.target_length
        else:
            lengths = [int(each.max()) for each in self.lengths(indices)]
        own = indices[shard[0] :: shard[1]]  # this worker's rows
        missing = ((0, num_rows - len(own)), (0, 0))
        source_ids, labels, *groups = (
            np.pad(ids, missing, constant_values=self._padding(name))
            for name, ids in zip(
                self._names, self._sides(own, lengths, epoch), strict=True
            )
        )
        target_ids = np.full_like(labels, self.pad_id)
        # The end id is only a label, so the shift drops it from the decoder's input.
        target_ids[:, 1:] = np.where(
            labels[:, 1:] != self.pad_id, labels[:, :-1], self.pad_id
        )
        target_ids[: len(own), 0] = self.start_id
        return source_ids, target_ids, labels, *groups

    @property
    def input_names(self):
        return ("source_ids", "target_ids", *self._names[2:])

    def _sides(self, indices, lengths, epoch):
        """Returns the rows of both sides, and their groups, padded to two lengths."""
        lengths = [*lengths, *lengths]
        return [
            self.rows(name, indices, length)
            for name, length in zip(self._names, lengths, strict=False)
        ]

    def pair(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the source and target ids of a row, int32, with end ids."""
        index = range(self.num_pairs)[index]
        bounds = [self._offsets[side][index : index + 2] for side in SIDES]
        return tuple(
            np.asarray(self._ids[side][start:end], np.int32)
            for side, (start, end) in zip(SIDES, bounds, strict=True)
        )

    def numbers(self, indices: np.ndarray) -> np.ndarray:
        """Returns the number of each row's pair: its position among all pairs read.

        Rows are counted from 0, pairs from 1. Dropped pairs count, too, so
        `Pairs.locate` accepts these numbers.
        """
        indices = indices // self._num_segmentations
        # dropped[i] - i pairs were kept before the i-th dropped pair.
        kept_before = self._dropped - np.arange(len(self._dropped))
        return indices + np.searchsorted(kept_before, indices, side="right") + 1

    def check_ids(self, *sizes: int) -> None:
        """Raises a `DataError` if an id is outside of its side's vocabulary size."""
        for side, size in zip(SIDES, sizes, strict=True):
            ids = self._ids[side]
            if ids.min() < 0 or ids.max() >= size:
                raise DataError(
                    f"{self.folder}: contains {side} ids outside of the vocabulary"
                )

    def rows_outside(self, size: int) -> np.ndarray:
        """Returns the rows whose target contains an id of at least `size`."""
        places = np.flatnonzero(self._ids["target"] >= size)
        return np.unique(np.searchsorted(self._offsets["target"], places, "right") - 1)

    def rows(self, side: str, indices: np.ndarray, length: int) -> np.ndarray:
        """Returns rows of a side, padded to int32 `[len(indices), length]`."""
        starts = self._offsets[side][indices]
        lengths = self._offsets[side][indices + 1] - starts
        rows = np.full((len(indices), length), self._padding(side), np.int32)
        real = np.arange(length) < lengths[:, np.newaxis]
        positions = starts[:, np.newaxis] + np.arange(length)
        rows[real] = self._ids[side][positions[real]]
        return rows

    def _padding(self, name):
        return 0 if name in GROUPS else self.pad_id

    def _lengths(self, side: str) -> np.ndarray:
        """Returns the lengths of a side's rows after checking its offsets."""
        ids, offsets = self._ids[side], self._offsets[side]
        if (
            len(offsets) != self.num_pairs + 1
            or (offsets[0], offsets[-1]) != (0, len(ids))
            or not _is_increasing(offsets)
        ):
            raise ValueError(f"{side}_offsets.npy does not match {side}_ids.npy")
        return np.diff(offsets).astype(np.int32)


def _is_increasing(array):
    # Neighbors are compared, because their differences could overflow.
    return (array[:-1] < array[1:]).all()


def side_files(side: str) -> tuple[str, str]:
    """Returns the names of a side's files: flat ids, and the offsets of its rows."""
    return f"{side}_ids.npy", f"{side}_offsets.npy"


def group_file(side: str) -> str:
    """Returns the name of the file with the group of each id of a side."""
    return f"{side}_groups.npy"


def corpus_report(facts: dict) -> str:
    """Returns a line with the numbers of kept and dropped pairs."""
    kept = f"{facts['num_pairs']:,} of {facts['num_read']:,} pairs kept"
    if 0 < facts["num_identical"] < facts["num_pairs"]:
        kept += f", {facts['num_identical']:,} of them with identical sides"
    elif facts["num_identical"]:
        kept += ", all with identical sides: is the target the same file as the source?"
    if facts.get("num_segmentations", 1) > 1:
        kept += f", each in {facts['num_segmentations']} segmentations"
    return "; dropped: ".join([kept, *filter(None, [dropped_report(facts["dropped"])])])


def new_dropped() -> dict:
    """Returns counts and first locations of dropped pairs by reason, none so far."""
    return {reason: {"count": 0, "first": []} for reason in DROP_REASONS}


def count_dropped(dropped: dict, reason: str, pairs, number: int, is_target) -> None:
    """Counts a dropped pair. The other arguments are those of `Pairs.locate`."""
    dropped[reason]["count"] += 1
    if len(dropped[reason]["first"]) < _MAX_LOCATIONS:
        dropped[reason]["first"].append(pairs.locate(number, is_target))


def dropped_report(dropped: dict) -> str:
    """Returns the numbers of dropped pairs and their first locations, or no text."""
    report = "; ".join(
        f"{found['count']:,} {DROP_REASONS[reason]} ({', '.join(found['first'])}"
        + (", ...)" if found["count"] > len(found["first"]) else ")")
        for reason, found in dropped.items()
        if found["count"]
    )
    return f"{report}. {LATIN_HINT}" if dropped["invalid_utf8"]["count"] else report
