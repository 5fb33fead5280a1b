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
    group_file,
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
_FILES |= {*map(group_file, SIDES)}


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
    # A link stays, and its target is replaced.
    folder = os.path.realpath(folder)
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise DataError(f"{folder}: must be a folder.")
    if os.path.isdir(folder) and set(os.listdir(folder)) - _FILES:
        raise DataError(
            f"{folder}: contains other files. Choose an empty folder for the token ids."
        )
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
        facts = _write_corpus(
            *(encoded, pairs.alignments(), pairs.locate),
            *(tokenizers, temporary, max_length),
        )
        facts |= {"fingerprint": fingerprint, "segmentations": segmentations}
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


def _encode_texts(pairs, tokenizers, sampling):
    """Tokenizes pairs in chunks.

    Yields:
        identical: Bool `[chunk]`, whether both sides of a pair are equal.
        reasons: Object `[chunk]`, why a pair is dropped (a key of `DROP_REASONS`), or
            "". Lengths are not checked yet.
        sides: RaggedTensors of source and target, int32 `[chunk * segmentations,
            (length)]`. The segmentations of a pair are adjacent.
        chunk: The texts, a list of pairs.
    """
    num_read = 0
    locate, pairs = pairs.locate, iter(pairs)
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
        for tokenizer, texts in zip(tokenizers, sides, strict=True):
            _check_languages(tokenizer, texts, num_read, locate)
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


def _check_languages(tokenizer, texts, num_read, locate):
    """Raises an error that names the place of an unknown language in a chunk's side."""
    first_ids = getattr(tokenizer, "first_ids", None)
    if first_ids is None:
        return
    try:
        first_ids(texts)
    except DataError:
        for number, text in enumerate(texts, num_read + 1):
            try:
                first_ids([text])
            except DataError as error:
                raise DataError(f"{locate(number)}: {error}") from None


def _segment(tokenizer, texts, sampling, place) -> tf.RaggedTensor:
    """Splits the texts of a chunk's side. `place` makes its random numbers unique."""
    if sampling is None:
        return tokenizer.tokenize(tf.constant(texts))
    dropout, segmentations, seed = sampling
    texts = [text.decode() for text in texts]
    seeds = np.random.SeedSequence([seed, *place]).generate_state(segmentations)
    sampled = [tokenizer.sample(texts, dropout, int(each)) for each in seeds]
    return tf.stack(sampled, axis=1).merge_dims(0, 1)


def _begins_word(tokenizer):
    """Returns for each id whether it begins a word, bool `[vocabulary_size]`."""
    return np.array([each.startswith(b" ") for each in tokenizer.piece_bytes()])


def _align_subwords(links, chunk, is_kept, begins, sides):
    """Returns the groups of all subwords of a chunk's sides, two uint16 arrays.

    `links` has the links of each pair between words. Words that are linked directly or
    through others are a group, counted from 1 in each pair. A pair that is not kept, or
    whose subwords do not begin as many words as its texts have, has no groups.
    """
    segmentations = sides[0].nrows() // len(chunk)
    has_groups = np.repeat(is_kept, segmentations)
    splits = [rows.row_splits.numpy() for rows in sides]
    words = []  # of each side, the word of each id, counted from 0 in its row
    for side in (0, 1):
        begun = np.cumsum(np.append(0, begins[side][sides[side].flat_values.numpy()]))
        before = begun[splits[side]]
        counts = [len((pair[side] or "").split()) for pair in chunk]
        has_groups &= np.diff(before) == np.repeat(counts, segmentations)
        words.append(begun[1:] - np.repeat(before[:-1], np.diff(splits[side])) - 1)
    groups = [np.zeros(len(each), np.uint16) for each in words]
    for row in np.flatnonzero(has_groups):
        group = _group_words(links[row // segmentations])
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
    encoded, alignments, locate, tokenizers, folder, max_length: int
) -> dict:
    """Writes the arrays of a corpus and returns its counts and a hash of the ids."""
    dropped = {reason: {"count": 0, "first": []} for reason in DROP_REASONS}
    num_read = num_identical = 0
    with contextlib.ExitStack() as stack:

        def create(name, dtype):
            return stack.enter_context(_npy_file(folder / name, dtype))

        append_dropped = create(DROPPED, np.int64)
        writers = []
        # A tokenizer may put a language before each text.
        num_first = [
            int(each.tokenize(tf.constant([""])).row_lengths()[0])
            for each in tokenizers
        ]
        for side, tokenizer in zip(SIDES, tokenizers, strict=True):
            ids, offsets = side_files(side)
            dtype = np.uint16 if tokenizer.vocabulary_size <= 1 << 16 else np.int32
            files = create(ids, dtype), create(offsets, np.int64)
            groups = None
            if alignments is not None:
                groups = create(group_file(side), np.uint16)
            writers.append(_RowWriter(*files, tokenizer.end_id, groups))
        begins = [_begins_word(each) for each in tokenizers if alignments is not None]
        for identical, reasons, sides, chunk in encoded:
            for rows, first in zip(sides, num_first, strict=True):
                lengths = rows.row_lengths().numpy().reshape(len(reasons), -1)
                # A normalizer may remove all characters of a text.
                reasons[(lengths <= first).any(1) & (reasons == "")] = "empty"
                is_long = (lengths + 1 > max_length).any(1)
                reasons[is_long & (reasons == "")] = "too_long"
            append_dropped(num_read + np.flatnonzero(reasons != ""))
            for number in np.flatnonzero(reasons != ""):
                facts = dropped[reasons[number]]
                facts["count"] += 1
                if len(facts["first"]) < _MAX_LOCATIONS:
                    facts["first"].append(locate(num_read + int(number) + 1))
            groups = (None, None)
            if alignments is not None:
                links = list(itertools.islice(alignments, len(reasons)))
                groups = _align_subwords(links, chunk, reasons == "", begins, sides)
            for writer, rows, numbers in zip(writers, sides, groups, strict=True):
                writer.append(rows, reasons == "", numbers)
            num_read += len(reasons)
            num_identical += int((identical & (reasons == "")).sum())
    hashes = "".join(writer.digest.hexdigest() for writer in writers)
    return {
        "num_read": num_read,
        "num_pairs": num_read - sum(facts["count"] for facts in dropped.values()),
        "num_identical": num_identical,
        "dropped": dropped,
        "ids": hashlib.sha256(hashes.encode()).hexdigest(),
        "pad_id": tokenizers[1].pad_id,
        "start_id": tokenizers[1].start_id,
    }


class _RowWriter:
    """Appends ids of a side, with end ids, to one file, and their offsets to another.

    The files are functions that append arrays (see `_npy_file`).
    """

    def __init__(self, append_ids, append_offsets, end_id: int, append_groups=None):
        self._append_ids, self._append_offsets = append_ids, append_offsets
        self._append_groups = append_groups
        self._end_id, self._num_ids = end_id, 0
        append_offsets(np.zeros(1, np.int64))
        self.digest = hashlib.sha256()  # of all ids, including end ids

    def append(self, rows: tf.RaggedTensor, is_kept: np.ndarray, groups=None) -> None:
        """Appends the rows of the pairs for which `is_kept`, a bool array, is true.

        `groups` has the group of each id. An end id has the group 0.
        """
        lengths = rows.row_lengths().numpy()
        is_kept = np.repeat(is_kept, len(lengths) // len(is_kept))
        ids = rows.flat_values.numpy()[np.repeat(is_kept, lengths)]
        ends = np.cumsum(lengths[is_kept])
        ids = np.insert(ids, ends, self._end_id)
        if groups is not None:
            groups = groups[np.repeat(is_kept, lengths)]
            self._append_groups(np.insert(groups, ends, 0))
        self._append_offsets(self._num_ids + np.cumsum(lengths[is_kept] + 1))
        self._append_ids(ids)
        self._num_ids += len(ids)
        self.digest.update(ids.astype("<i4").tobytes())


@contextlib.contextmanager
def _npy_file(path, dtype):
    """Yields a function that appends arrays to a one-dimensional `.npy` file.

    Python writes them, because an error of `ndarray.tofile` has no error code, such as
    the one of a full disk.
    """
    length = 0

    def write_header():
        # NumPy pads it to the same size for any length, so that it can be replaced.
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype))}
        header |= {"fortran_order": False, "shape": (length,)}
        np.lib.format.write_array_header_1_0(file, header)

    def append(elements):
        nonlocal length
        file.write(elements.astype(dtype, copy=False).tobytes())
        length += len(elements)

    with open(path, "wb") as file:
        write_header()
        yield append
        file.seek(0)
        write_header()
