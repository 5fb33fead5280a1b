"""Tokenizes a corpus once and stores its ids in a folder."""

import contextlib
import fcntl
import hashlib
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.errors import DataError
from keras_transformer.files import replace_folder, replace_text
from keras_transformer.pipelines.encoded_corpus import (
    DROPPED,
    FACTS,
    SIDES,
    EncodedCorpus,
    corpus_report,
    count_dropped,
    group_file,
    new_dropped,
    side_files,
)
from keras_transformer.pipelines.lines import encode_text
from keras_transformer.pipelines.sources.base import Pair, Pairs, as_pairs
from keras_transformer.pipelines.tokenizers.base import Tokenizer
from keras_transformer.untrusted import read_json

logger = logging.getLogger(__name__)

# Part of the fingerprint. Change it when the stored ids change.
_FORMAT = 3
# Part of the fingerprint. Change it when `Tokenizer.sample` draws other numbers.
_SAMPLER = "philox"
_CHUNK_PAIRS = 8192
_HASHED_IDS = 1 << 20  # per step, to bound the memory
_FILES = {FACTS, DROPPED, *itertools.chain(*map(side_files, SIDES))}
_FILES |= {*map(group_file, SIDES)}
_TEMPORARY = f".{FACTS.removesuffix('.json')}-"


def encode_corpus(
    pairs: Pairs | Iterable[Pair],
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    folder: str | os.PathLike,
    max_length: int = 256,
    bpe_dropout: float = 0.0,
    num_segmentations: int = 1,
    seed: int = 1,
    examples: str = "training examples",
    report: Callable | None = None,
) -> EncodedCorpus:
    """Tokenizes pairs once and stores their ids in `folder`.

    With `bpe_dropout`, each pair is stored `num_segmentations` times, each time split
    randomly into subwords. An epoch contains all segmentations.

    If the folder already contains the same text, encoded with the same tokenizers and
    options, the existing corpus is opened. A source whose `fingerprint()` is `None` is
    always encoded again. An interrupted call leaves finished chunks in a folder with
    the suffix `.part`, and the same call continues them.

    Args:
        pairs: A `Pairs` object or any iterable of (source text, target text).
        source_tokenizer: Tokenizer of the source texts.
        target_tokenizer: Tokenizer of the target texts, the same object if shared.
        folder: The output folder. Another corpus in it is replaced.
        max_length: Maximum number of ids of a side, including the end id. Longer pairs
            are dropped.
        bpe_dropout: Probability of skipping a merge of subwords (see
            `Tokenizer.sample`).
        num_segmentations: Number of segmentations per pair, 1 without `bpe_dropout`.
        seed: Seed of BPE-dropout, not negative.
        examples: Plural noun for the pairs, for the message if none is left.
        report: Function that receives the number of encoded pairs at the start and
            after each chunk.

    Returns:
        The `EncodedCorpus` in `folder`.

    Raises:
        ValueError: If `bpe_dropout` is outside [0, 1), if `num_segmentations` is below
            1, or above 1 without `bpe_dropout`.
        DataError: If the text cannot be read, no pair is left, the tokenizer does not
            support BPE-dropout, or `folder` contains other files.

    Examples:
        >>> pairs = [("a dog runs", "ein Hund rennt"), ("a man runs", "ein Mann rennt")]
        >>> texts = [text for pair in pairs for text in pair]
        >>> tokenizer = kt.pipelines.train_tokenizer("bpe", texts, vocabulary_size=280)
        >>> corpus = kt.pipelines.encode_corpus(pairs, tokenizer, tokenizer, "corpus")
        >>> corpus.report
        '2 of 2 pairs kept'
    """
    if (
        not 0 <= bpe_dropout < 1
        or num_segmentations < 1
        or (num_segmentations > 1 and not bpe_dropout)
    ):
        raise ValueError(
            "`bpe_dropout` must be in [0, 1), and `num_segmentations` at least 1 (1 "
            f"without `bpe_dropout`). Received: bpe_dropout={bpe_dropout}, "
            f"num_segmentations={num_segmentations}."
        )
    pairs = as_pairs(pairs)
    tokenizers = source_tokenizer, target_tokenizer
    sampling = (bpe_dropout, num_segmentations, seed) if bpe_dropout else None
    fingerprint = _fingerprint(pairs, tokenizers, max_length, sampling)
    corpus = _matching_corpus(folder, fingerprint, tokenizers)
    if corpus is not None:
        return corpus
    # A link stays, and its target is replaced.
    folder = os.path.realpath(folder)
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise DataError(f"{folder}: must be a folder")
    # An error also removes the folder of an interrupted call.
    for each in [folder] if fingerprint is None else [folder, f"{folder}.part"]:
        names = os.listdir(each) if os.path.isdir(each) else []
        # A killed call may leave a temporary file of its facts.
        if {name for name in names if not name.startswith(_TEMPORARY)} - _FILES:
            raise DataError(
                f"{each}: contains other files. Choose an empty folder for the token "
                "ids"
            )
    with replace_folder(folder, is_kept=fingerprint is not None) as temporary:
        id_chunks = pairs.id_chunks(source_tokenizer)
        if id_chunks is not None and sampling:
            raise DataError(
                "the pairs already contain ids, so no segmentations can be drawn. "
                f"Received: bpe_dropout={bpe_dropout}"
            )
        facts = _read_partial(temporary / FACTS, fingerprint)
        if id_chunks is None:
            encoded = _encode_texts(pairs, tokenizers, sampling, facts["num_read"])
        else:
            encoded, facts = _read_ids(id_chunks), _read_partial("", fingerprint)
        _write_corpus(encoded, pairs, tokenizers, temporary, max_length, facts, report)
        del facts["lengths"]
        facts |= {"ids": _hash_ids(temporary), "num_segmentations": num_segmentations}
        facts |= {
            "pad_id": target_tokenizer.pad_id,
            "start_id": target_tokenizer.start_id,
        }
        facts["ends"] = getattr(pairs, "ends", None)
        (temporary / FACTS).write_text(json.dumps(facts, indent=1))
        if not facts["num_pairs"]:
            raise DataError(
                f"no {examples}: {corpus_report(facts).removesuffix('.')}. "
                f"Received: max_length={max_length} (data.max_length in a recipe)"
            )
    return EncodedCorpus(folder)


def _matching_corpus(folder, fingerprint, tokenizers) -> EncodedCorpus | None:
    """Returns the corpus in `folder` if it has the fingerprint, else `None`.

    Another corpus is closed: network file systems cannot remove a folder of open files.
    """
    if fingerprint is None:
        return None
    with contextlib.suppress(DataError):
        corpus = EncodedCorpus.load(folder)
        special_ids = tokenizers[1].pad_id, tokenizers[1].start_id
        same_ids = (corpus.pad_id, corpus.start_id) == special_ids
        if corpus.inputs == fingerprint and same_ids:
            corpus.check_ids(*(each.vocabulary_size for each in tokenizers))
            return corpus
    return None


def _fingerprint(pairs, tokenizers, max_length, sampling) -> str | None:
    """Returns a hash of all inputs, or `None` if the source has no fingerprint."""
    text = pairs.fingerprint()
    if text is None:
        return None
    hashes = [tokenizer.fingerprint() for tokenizer in tokenizers]
    sampler = [_SAMPLER] if sampling else []
    facts = [_FORMAT, text, *hashes, max_length, sampling, *sampler]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _read_partial(path, fingerprint) -> dict:
    """Returns the facts of an interrupted `_write_corpus`, or those of a new one."""
    with contextlib.suppress(DataError):
        facts = read_json(path, dict[str, Any], error=DataError)
        if facts.get("fingerprint") == fingerprint and "lengths" in facts:
            return facts
    counts = dict.fromkeys(("num_read", "num_pairs", "num_identical"), 0)
    facts = {"dropped": new_dropped(), "fingerprint": fingerprint, "lengths": {}}
    return counts | facts


def _hash_ids(folder) -> str:
    """Returns a hash of all ids, including end ids."""
    hashes = ""
    for side in SIDES:
        digest = hashlib.sha256()
        ids = np.load(folder / side_files(side)[0], mmap_mode="r")
        for start in range(0, len(ids), _HASHED_IDS):
            digest.update(ids[start : start + _HASHED_IDS].astype("<i4").tobytes())
        hashes += digest.hexdigest()
    return hashlib.sha256(hashes.encode()).hexdigest()


def _encode_texts(pairs, tokenizers, sampling, num_read):
    """Tokenizes the pairs after the first `num_read` in chunks.

    Yields:
        identical: Bool `[chunk]`, whether both sides of a pair are equal.
        reasons: Object `[chunk]`, why a pair is dropped (a key of `DROP_REASONS`), or
            "". Lengths are not checked yet.
        sides: RaggedTensors of source and target, int32
            `[chunk * num_segmentations, (length)]`. The segmentations of a pair are
            adjacent.
        chunk: The texts, a list of pairs.
    """
    locate, pairs = pairs.locate, itertools.islice(pairs, num_read, None)
    while chunk := list(itertools.islice(pairs, _CHUNK_PAIRS)):
        reasons = np.full(len(chunk), "", object)
        identical = np.array([source == target for source, target in chunk])
        sides = ([], [])
        for number, pair in enumerate(chunk):
            texts = [encode_text(text) for text in pair]
            if None in texts:
                reasons[number] = "invalid_utf8"
            elif not all(text.strip() for text in pair):
                reasons[number] = "empty"
            for side, text in zip(sides, texts, strict=True):
                side.append(text if text and text.strip() else b"")
        for tokenizer, texts in zip(tokenizers, sides, strict=True):
            if hasattr(tokenizer, "check_prefix"):
                _check_prefixes(tokenizer, texts, num_read, locate)
        yield (
            identical,
            reasons,
            [
                _segment(tokenizers[side], sides[side], sampling, [num_read, side])
                for side in (0, 1)
            ],
            chunk,
        )
        num_read += len(chunk)


def _check_prefixes(tokenizer, texts, num_read, locate):
    """Raises an error that names the place of an unknown language in a chunk's side."""
    for number, text in enumerate(texts, num_read + 1):
        try:
            tokenizer.check_prefix(text.decode())
        except DataError as error:
            raise DataError(f"{locate(number)}: {error}") from None


def _segment(tokenizer, texts, sampling, place) -> tf.RaggedTensor:
    """Splits the texts of a chunk's side. `place` makes its random numbers unique."""
    if sampling is None:
        return tokenizer.tokenize(tf.constant(texts))
    dropout, num_segmentations, seed = sampling
    texts = [text.decode() for text in texts]
    seeds = np.random.SeedSequence([seed, *place]).generate_state(num_segmentations)
    sampled = [tokenizer.sample(texts, dropout, int(each)) for each in seeds]
    return tf.stack(sampled, axis=1).merge_dims(0, 1)


def _align_subwords(links, chunk, is_kept, begins, sides):
    """Returns the groups of all subwords of a chunk's sides, two uint16 arrays.

    `links` has the links of each pair between words, and `begins` for each side
    whether an id begins a word, bool `[vocabulary_size]`. Words that are linked
    directly or through others are a group, counted from 1 in each pair. A pair that is
    not kept, or whose subwords do not begin as many words as its texts have, has no
    groups.
    """
    num_segmentations = sides[0].nrows() // len(chunk)
    has_groups = np.repeat(is_kept, num_segmentations)
    splits = [rows.row_splits.numpy() for rows in sides]
    words = []  # of each side, the word of each id, counted from 0 in its row
    for side in (0, 1):
        begun = np.cumsum(np.append(0, begins[side][sides[side].flat_values.numpy()]))
        before = begun[splits[side]]
        counts = [len((pair[side] or "").split()) for pair in chunk]
        has_groups &= np.diff(before) == np.repeat(counts, num_segmentations)
        words.append(begun[1:] - np.repeat(before[:-1], np.diff(splits[side])) - 1)
    groups = [np.zeros(len(each), np.uint16) for each in words]
    for row in np.flatnonzero(has_groups):
        group = _group_words(links[row // num_segmentations])
        for side in (0, 1) if group else ():
            place = slice(*splits[side][row : row + 2])
            groups[side][place] = [
                group.get((side, word), 0) for word in words[side][place]
            ]
    return groups


def _group_words(links):
    """Returns the group of each linked word, (0 or 1 for its side, its index)."""
    groups = {}
    for number, (source, target) in enumerate(links, 1):
        words = (0, source), (1, target)
        joined = {groups[word] for word in words if word in groups}
        groups |= dict.fromkeys(words, min(joined, default=number))
        if len(joined) > 1:
            for word in groups:
                if groups[word] in joined:
                    groups[word] = min(joined)
    numbers = {each: number for number, each in enumerate({*groups.values()}, 1)}
    return {word: numbers[group] for word, group in groups.items()}


def _read_ids(id_chunks):
    """Like `_encode_texts`, for pairs that are already tokenized."""
    for sides in id_chunks:
        num_pairs = sides[0].nrows()
        yield np.zeros(num_pairs, bool), np.full(num_pairs, "", object), sides, None


def _write_corpus(
    encoded, pairs, tokenizers, folder, max_length, facts, report
) -> None:
    """Writes the arrays of a corpus and updates its facts after each chunk.

    `facts` describes the chunks that are complete (see `_read_partial`).
    """
    lengths = facts["lengths"]
    alignments = pairs.alignments()
    with contextlib.ExitStack() as stack:
        files = []

        def create(name, dtype):
            files.append(_NpyFile(folder / name, dtype, lengths.get(name, 0)))
            return stack.enter_context(files[-1])

        dropped_file = create(DROPPED, np.int64)
        writers = []
        # A tokenizer may put a language before each text.
        num_first = [
            int(each.tokenize(tf.constant([""])).row_lengths()[0])
            for each in tokenizers
        ]
        for side, tokenizer in zip(SIDES, tokenizers, strict=True):
            ids, offsets = side_files(side)
            dtype = np.uint16 if tokenizer.vocabulary_size <= 1 << 16 else np.int32
            ids, offsets = create(ids, dtype), create(offsets, np.int64)
            groups = None
            if alignments is not None:
                groups = create(group_file(side), np.uint16)
            else:  # of other text in an interrupted call
                (folder / group_file(side)).unlink(missing_ok=True)
            if not offsets.length:
                offsets.append(np.zeros(1, np.int64))
            writers.append((tokenizer.end_id, ids, offsets, groups))
        if alignments is not None:
            begins = [
                np.array([piece.startswith(b" ") for piece in each.piece_bytes()])
                for each in tokenizers
            ]
            alignments = itertools.islice(alignments, facts["num_read"], None)
        if report is not None:
            report(facts["num_read"])
        try:
            for identical, reasons, sides, chunk in encoded:
                num_read = facts["num_read"]
                is_good = []  # of each side
                for rows, first in zip(sides, num_first, strict=True):
                    sizes = rows.row_lengths().numpy().reshape(len(reasons), -1)
                    # A normalizer may remove all characters of a text.
                    is_empty = (sizes <= first).any(1)
                    reasons[is_empty & (reasons == "")] = "empty"
                    is_long = (sizes + 1 > max_length).any(1)
                    reasons[is_long & (reasons == "")] = "too_long"
                    is_good.append(~is_empty & ~is_long)
                groups = (None, None)
                if alignments is not None:
                    links = list(itertools.islice(alignments, len(reasons)))
                    groups = _align_subwords(links, chunk, reasons == "", begins, sides)
                dropped_file.append(num_read + np.flatnonzero(reasons != ""))
                for writer, rows, numbers in zip(writers, sides, groups, strict=True):
                    _append_rows(rows, reasons == "", numbers, *writer)
                for number in np.flatnonzero(reasons != ""):
                    is_target = is_good[0][number] and not is_good[1][number]
                    place = num_read + int(number) + 1, is_target
                    count_dropped(facts["dropped"], reasons[number], pairs, *place)
                facts["num_read"] += len(reasons)
                facts["num_pairs"] += int((reasons == "").sum())
                facts["num_identical"] += int((identical & (reasons == "")).sum())
                lengths.update({each.name: each.flush() for each in files})
                replace_text(folder / FACTS, json.dumps(facts))
                if report is not None:
                    report(facts["num_read"])
        except (KeyboardInterrupt, SystemExit):
            logger.info(f"the ids of the first {facts['num_read']:,} pairs are kept")
            raise


def _append_rows(rows, is_kept, groups, end_id, ids_file, offsets_file, groups_file):
    """Appends rows of a side to its `_NpyFile`s, with end ids, whose group is 0.

    Only rows of pairs are appended for which `is_kept`, a bool array, is true. `groups`
    has the group of each id, or is `None`.
    """
    lengths = rows.row_lengths().numpy()
    is_kept = np.repeat(is_kept, len(lengths) // len(is_kept))
    ids = rows.flat_values.numpy()[np.repeat(is_kept, lengths)]
    ends = np.cumsum(lengths[is_kept])
    ids = np.insert(ids, ends, end_id)
    if groups is not None:
        groups = groups[np.repeat(is_kept, lengths)]
        groups_file.append(np.insert(groups, ends, 0))
    offsets_file.append(ids_file.length + np.cumsum(lengths[is_kept] + 1))
    ids_file.append(ids)


class _NpyFile:
    """Context that appends arrays to a `.npy` file of `length` elements.

    Python writes them, because an error of `ndarray.tofile` has no error code, such as
    the one of a full disk.
    """

    def __init__(self, path, dtype, length=0):
        self._path, self.name = path, path.name
        self.length, self._dtype = length, np.dtype(dtype)

    def __enter__(self):
        self._file = open(self._path, "r+b" if self._path.exists() else "w+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            reason = "another process is writing to it"
            raise BlockingIOError(error.errno, reason, str(self._path)) from None
        self._write_header()
        self._file.flush()
        size = self._file.tell() + self.length * self._dtype.itemsize
        if os.fstat(self._file.fileno()).st_size < size:
            raise DataError(
                f"{self._path}: is shorter than its record says. Delete the folder, "
                "and encode again"
            )
        self._file.truncate(size)
        self._file.seek(0, os.SEEK_END)
        return self

    def __exit__(self, *_):
        with self._file:
            self._file.seek(0)
            self._write_header()

    def _write_header(self):
        # NumPy pads it to the same size for any length, so that it can be replaced.
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype)}
        header |= {"fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, elements):
        self._file.write(elements.astype(self._dtype, copy=False).tobytes())
        self.length += len(elements)

    def flush(self):
        """Writes buffered elements and returns the length."""
        self._file.flush()
        return self.length
