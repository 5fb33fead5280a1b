"""Tokenizes a corpus once and stores its ids in a folder."""

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from keras_transformer.errors import DataError
from keras_transformer.files import replace_folder
from keras_transformer.pipelines.encoded_corpus import (
    DROP_REASONS,
    DROPPED,
    FACTS,
    SIDES,
    EncodedCorpus,
    corpus_report,
    side_files,
)
from keras_transformer.pipelines.lines import encode_text
from keras_transformer.pipelines.sources.base import Pair, Pairs, as_pairs
from keras_transformer.pipelines.tokenizers.base import Tokenizer

# Part of the fingerprint. Change it when the stored ids change.
_FORMAT = 3
# Part of the fingerprint. Change it when `Tokenizer.sample` draws other numbers.
_SAMPLER = "philox"
_CHUNK_PAIRS = 8192
# Maximum number of dropped pairs per reason whose locations are stored.
_MAX_LOCATIONS = 5
_FILES = {FACTS, DROPPED, *itertools.chain(*map(side_files, SIDES))}


def encode_corpus(
    pairs: Pairs | Iterable[Pair],
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    folder: str | os.PathLike,
    max_length: int = 256,
    dropout: float = 0.0,
    segmentations: int = 1,
    seed: int = 1,
    examples: str = "training examples",
) -> EncodedCorpus:
    """Tokenizes pairs once and stores their ids in `folder`.

    With `dropout`, each pair is stored `segmentations` times, each time split randomly
    into subwords (BPE-dropout). An epoch contains all segmentations.

    If the folder already contains the same text, encoded with the same tokenizers and
    options, the existing corpus is opened. A source whose `fingerprint()` is `None` is
    always encoded again.

    Args:
        pairs: A `Pairs` object or any iterable of (source text, target text).
        source_tokenizer: Tokenizer of the source texts.
        target_tokenizer: Tokenizer of the target texts, the same object if shared.
        folder: The output folder. Another corpus in it is replaced.
        max_length: Maximum number of ids of a side, including the end id. Longer pairs
            are dropped.
        dropout: Probability of skipping a merge of subwords (see `Tokenizer.sample`).
        segmentations: Number of segmentations per pair, 1 without dropout.
        seed: Seed of the dropout, not negative.
        examples: Plural noun for the pairs, for the message if none is left.

    Returns:
        The corpus in `folder`.

    Raises:
        ValueError: If `dropout` is outside [0, 1), if `segmentations` is below 1, or
            above 1 without `dropout`.
        DataError: If the text cannot be read, no pair is left, the tokenizer does not
            support dropout, or `folder` contains other files.
    """
    if not 0 <= dropout < 1 or segmentations < 1 or (segmentations > 1 and not dropout):
        raise ValueError(
            "`dropout` must be in [0, 1), and `segmentations` at least 1 (1 without "
            f"dropout). Received: dropout={dropout}, segmentations={segmentations}."
        )
    pairs = as_pairs(pairs)
    tokenizers = source_tokenizer, target_tokenizer
    sampling = (dropout, segmentations, seed) if dropout else None
    fingerprint = _fingerprint(pairs, tokenizers, max_length, sampling)
    corpus = _matching_corpus(folder, fingerprint, tokenizers)
    if corpus is not None:
        return corpus
    folder = _replaceable_folder(folder)
    with replace_folder(folder) as temporary:
        id_chunks = pairs.id_chunks(source_tokenizer)
        if id_chunks is not None and sampling:
            raise DataError(
                "the pairs already contain ids, so no segmentations can be drawn. "
                f"Received: dropout={dropout}."
            )
        encoded = (
            _encode_texts(pairs, tokenizers, sampling)
            if id_chunks is None
            else _read_ids(id_chunks)
        )
        facts = _write_corpus(encoded, pairs.locate, tokenizers, temporary, max_length)
        facts["fingerprint"] = fingerprint
        facts["segmentations"] = segmentations
        facts["pad_id"] = target_tokenizer.pad_id
        facts["start_id"] = target_tokenizer.start_id
        (temporary / FACTS).write_text(json.dumps(facts, indent=1))
        if not facts["num_pairs"]:
            raise DataError(
                f"no {examples}: {corpus_report(facts)}. "
                f"Received: max_length={max_length} (data.max_length in a recipe)."
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
        special_ids = corpus.pad_id, corpus.start_id
        expected_ids = tokenizers[1].pad_id, tokenizers[1].start_id
        if corpus.inputs == fingerprint and special_ids == expected_ids:
            corpus.check_ids(*(each.vocabulary_size for each in tokenizers))
            return corpus
    return None


def _replaceable_folder(folder: str | os.PathLike) -> str:
    """Returns the path of `folder` (of its target, if a link) without other files."""
    folder = os.path.realpath(folder)
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise DataError(f"{folder}: must be a folder.")
    if os.path.isdir(folder) and set(os.listdir(folder)) - _FILES:
        raise DataError(
            f"{folder}: contains other files. Choose an empty folder for the token ids."
        )
    return folder


def _fingerprint(pairs, tokenizers, max_length, sampling) -> str | None:
    """Returns a hash of all inputs, or `None` if the source has no fingerprint."""
    text = pairs.fingerprint()
    if text is None:
        return None
    hashes = [tokenizer.fingerprint() for tokenizer in tokenizers]
    facts = [_FORMAT, text, *hashes, max_length, sampling]
    facts += [_SAMPLER] if sampling else []
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _encode_texts(pairs, tokenizers, sampling):
    """Tokenizes pairs in chunks.

    Yields:
        identical: Bool `[chunk]`, whether both sides of a pair are equal.
        reasons: Object `[chunk]`, why a pair is dropped (a key of `DROP_REASONS`), or
            "". Lengths are not checked yet.
        sides: For each side a list of segmentations, each a RaggedTensor int32 `[chunk,
            (length)]`.
    """
    num_read = 0
    pairs = iter(pairs)
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
                side.append(text or b"")
        segmented = [
            _segment(tokenizers[side], sides[side], sampling, [num_read, side])
            for side in (0, 1)
        ]
        yield identical, reasons, segmented
        num_read += len(chunk)


def _read_ids(id_chunks):
    """Like `_encode_texts`, for pairs that are already tokenized."""
    for sides in id_chunks:
        num_pairs = sides[0].nrows()
        reasons = np.full(num_pairs, "", object)
        yield np.zeros(num_pairs, bool), reasons, [[side] for side in sides]


def _write_corpus(encoded, locate, tokenizers, folder, max_length: int) -> dict:
    """Writes the arrays of a corpus and returns its counts and a hash of the ids."""
    dropped = {reason: {"count": 0, "first": []} for reason in DROP_REASONS}
    num_read = num_identical = 0
    with contextlib.ExitStack() as stack:

        def create(name, dtype):
            file = _NpyFile(folder / name, dtype)
            stack.callback(file.close)
            return file

        dropped_pairs = create(DROPPED, np.int64)
        writers = []
        for side, tokenizer in zip(SIDES, tokenizers, strict=True):
            ids, offsets = side_files(side)
            dtype = np.uint16 if tokenizer.vocabulary_size <= 1 << 16 else np.int32
            files = create(ids, dtype), create(offsets, np.int64)
            writers.append(_RowWriter(*files, tokenizer.end_id))
        for identical, reasons, sides in encoded:
            for segmented in itertools.chain(*sides):
                lengths = segmented.row_lengths().numpy()
                # A normalizer may remove all characters of a text.
                reasons[(lengths == 0) & (reasons == "")] = "empty"
                reasons[(lengths + 1 > max_length) & (reasons == "")] = "too_long"
            dropped_pairs.append(num_read + np.flatnonzero(reasons != ""))
            for number in np.flatnonzero(reasons != ""):
                facts = dropped[reasons[number]]
                facts["count"] += 1
                if len(facts["first"]) < _MAX_LOCATIONS:
                    facts["first"].append(locate(num_read + int(number) + 1))
            for writer, side in zip(writers, sides, strict=True):
                # A pair's segmentations are stored next to each other: row i belongs to
                # pair i // len(side).
                rows = np.arange(len(reasons) * len(side))
                rows = rows.reshape(len(side), -1).T.ravel()
                kept = np.repeat(reasons == "", len(side))
                writer.append(tf.gather(tf.concat(side, 0), rows), kept)
            num_read += len(reasons)
            num_identical += int((identical & (reasons == "")).sum())
    hashes = "".join(writer.digest.hexdigest() for writer in writers)
    return {
        "num_read": num_read,
        "num_pairs": num_read - sum(facts["count"] for facts in dropped.values()),
        "num_identical": num_identical,
        "dropped": dropped,
        "ids": hashlib.sha256(hashes.encode()).hexdigest(),
    }


def _segment(tokenizer, texts, sampling, place) -> list[tf.RaggedTensor]:
    """Returns a chunk's ids, one RaggedTensor per segmentation.

    The seed of the sampling also depends on `place`, a list of ints, so that each chunk
    and each side draws different numbers.
    """
    if sampling is None:
        return [tokenizer.tokenize(tf.constant(texts))]
    dropout, segmentations, seed = sampling
    texts = [text.decode() for text in texts]
    seeds = np.random.SeedSequence([seed, *place]).generate_state(segmentations)
    return [tokenizer.sample(texts, dropout, int(seed)) for seed in seeds]


class _RowWriter:
    """Appends rows of ids with end ids to one `_NpyFile`, their offsets to another."""

    def __init__(self, ids, offsets, end_id: int):
        self._ids, self._offsets, self._end_id = ids, offsets, end_id
        offsets.append(np.zeros(1, np.int64))
        self.digest = hashlib.sha256()  # of all ids, including end ids

    def append(self, ragged: tf.RaggedTensor, kept: np.ndarray) -> None:
        """Appends the rows for which the bool array `kept` is true."""
        lengths = ragged.row_lengths().numpy()
        ids = ragged.flat_values.numpy()[np.repeat(kept, lengths)]
        ids = np.insert(ids, np.cumsum(lengths[kept]), self._end_id)
        self._offsets.append(self._ids.length + np.cumsum(lengths[kept] + 1))
        self._ids.append(ids)
        self.digest.update(ids.astype("<i4").tobytes())


class _NpyFile:
    """Writes a one-dimensional `.npy` file chunk by chunk.

    Python writes the chunks, because an error of `ndarray.tofile` has no error code,
    such as the one of a full disk.
    """

    def __init__(self, path, dtype):
        self._dtype, self.length = np.dtype(dtype), 0
        self._file = open(path, "wb")  # noqa: SIM115
        self._write_header()

    def append(self, elements: np.ndarray) -> None:
        self._file.write(elements.astype(self._dtype, copy=False).tobytes())
        self.length += len(elements)

    def close(self) -> None:
        with self._file:
            self._file.seek(0)
            self._write_header()

    def _write_header(self):
        # NumPy pads it to the same size for any length, so that `close` can replace it.
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype)}
        header |= {"fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self._file, header)
