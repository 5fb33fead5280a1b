"""`encode_corpus` matches the tokenizer, drops invalid pairs, and caches the ids.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import gzip
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.errors import DataError
from keras_transformer.pipelines import (
    MixedPairs,
    Pairs,
    TextFiles,
    encode_corpus,
    encoding,
    train_tokenizer,
)
from keras_transformer.pipelines.encoded_corpus import stored_ends
from keras_transformer.pipelines.tokenizers.byte_pairs import BytePairTokenizer

WORDS = ["ein", "Mann", "rides", "Hund", "läuft", "bike", "the", "schnell", "27", "."]
END = 3


def sentences(count, seed, longest=13):
    generator = np.random.default_rng(seed)
    return [
        " ".join(generator.choice(WORDS, generator.integers(1, longest)))
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def tokenizers():
    return (
        train_tokenizer("bpe", sentences(97, 1), 300),
        train_tokenizer("bpe", sentences(97, 2), 290),
    )


def write(path, lines):
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def expected_ids(tokenizer, text):
    return [*tokenizer.tokenize([text]).to_list()[0], END]


def test_corpus_contains_every_pair_in_order(tokenizers, tmp_path, monkeypatch):
    # The number of pairs is not a multiple of the chunk size.
    monkeypatch.setattr(encoding, "_CHUNK_PAIRS", 7)
    pairs = list(zip(sentences(31, 3), sentences(31, 4), strict=True))
    corpus = encode_corpus(pairs, *tokenizers, tmp_path / "ids")
    assert corpus.num_pairs == 31
    assert corpus.report == "31 of 31 pairs kept"
    # `max_length` includes end ids.
    longest = int(max(corpus.source_lengths.max(), corpus.target_lengths.max()))
    for max_length, dropped in ((longest, False), (longest - 1, True)):
        other = encode_corpus(pairs, *tokenizers, tmp_path / "other", max_length)
        assert (other.num_pairs < 31) == dropped
    for index, texts in enumerate(pairs):
        expected = [
            expected_ids(tokenizer, text)
            for tokenizer, text in zip(tokenizers, texts, strict=True)
        ]
        assert [ids.tolist() for ids in corpus.pair(index)] == expected
        assert corpus.source_lengths[index] == len(expected[0])
        assert corpus.target_lengths[index] == len(expected[1])
    assert corpus.pair(-1)[0].tolist() == corpus.pair(30)[0].tolist()
    with pytest.raises(IndexError):
        corpus.pair(31)


def test_arrays_are_those_of_numpy(tokenizers, tmp_path):
    """The header of `source_ids.npy` is written before the number of ids is known."""
    pairs = [("ein Mann", "27"), ("", "x"), ("Hund", "bike"), ("läuft .", "")]
    folder = pathlib.Path(encode_corpus(pairs, *tokenizers, tmp_path / "ids").folder)
    ids = [expected_ids(tokenizers[0], text) for text in ("ein Mann", "Hund")]
    expected = {
        "source_ids.npy": np.concatenate(ids).astype(np.uint16),
        "source_offsets.npy": np.cumsum([0, *map(len, ids)]),
        "dropped.npy": np.array([1, 3]),
    }
    for name, array in expected.items():
        np.save(tmp_path / name, array)
        assert (folder / name).read_bytes() == (tmp_path / name).read_bytes()


def test_large_ids_are_stored_exactly(tokenizers, tmp_path):
    class WideTokenizer:
        """Returns ids that need more than 16 bits."""

        vocabulary_size = 70_001
        end_id = END

        def fingerprint(self):
            return "wide"

        def tokenize(self, strings):
            ids = tokenizers[0].tokenize(strings)
            return ids.with_flat_values(ids.flat_values + 69_500)

    corpus = encode_corpus(
        [("ein Mann", "ein Mann")], WideTokenizer(), tokenizers[0], tmp_path / "a"
    )
    source, target = corpus.pair(0)
    assert (source[:-1] - 69_500).tolist() == target[:-1].tolist()
    assert source[-1] == END


@pytest.mark.fault("F14", "train: dropped, counted, line named; the rest aligned")
def test_dropped_pairs_are_counted_with_lines(tokenizers, tmp_path):
    source = [line.encode() for line in sentences(23, 5)]
    target = [line.encode() for line in sentences(23, 6)]
    source[4] = b""
    target[7] = b" \t "
    source[8] = b"caf\xe9"
    target[11] = b"ein " * 40
    source[12] = b"\xff"
    target[12] = b""
    for line in (15, 16, 17, 18, 19, 20):
        source[line] = b""
    files = TextFiles(
        write(tmp_path / "a.en", source), write(tmp_path / "a.de", target)
    )
    corpus = encode_corpus(files, *tokenizers, tmp_path / "ids", max_length=61)
    lines = {
        reason: [int(place.rpartition(":")[2]) for place in facts["first"]]
        for reason, facts in corpus.dropped.items()
    }
    counts = {reason: facts["count"] for reason, facts in corpus.dropped.items()}
    assert counts == {"invalid_utf8": 2, "empty": 8, "too_long": 1}
    # Lines are numbered from 1. Only the first five per reason are stored.
    assert lines == {
        "invalid_utf8": [9, 13],
        "empty": [5, 8, 16, 17, 18],
        "too_long": [12],
    }
    assert corpus.num_pairs == 12
    name, other = tmp_path / "a.en", tmp_path / "a.de"
    assert corpus.report == (
        f"12 of 23 pairs kept; dropped: 2 not UTF-8 on a side ({name}:9, {name}:13); "
        f"8 with an empty side ({name}:5, {other}:8, {name}:16, {name}:17, {name}:18, "
        f"...); 1 longer than data.max_length ({other}:12). If it is Windows-1252, "
        "convert it with iconv -f CP1252 -t UTF-8."
    )
    # The remaining pairs are still aligned.
    kept = [n for n in range(23) if n not in (4, 7, 8, 11, 12, *range(15, 21))]
    for index, line in enumerate(kept):
        expected = expected_ids(tokenizers[1], target[line].decode())
        assert corpus.pair(index)[1].tolist() == expected
    numbers = corpus.numbers(np.arange(12))
    assert numbers.tolist() == [line + 1 for line in kept]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit(143)])
def test_interrupted_call_is_continued(tokenizers, tmp_path, monkeypatch, stop):
    """Chunks have 5 pairs. The second call reads no finished chunk with a tokenizer."""
    monkeypatch.setattr(encoding, "_CHUNK_PAIRS", 5)
    lines = [line.encode() for line in sentences(23, 8)]
    lines[3] = b""
    files = write(tmp_path / "a", lines), write(tmp_path / "b", lines[::-1])

    def encode(folder, report=None):
        pairs = MixedPairs([TextFiles(*files), TextFiles(*files[::-1])])
        options = {"bpe_dropout": 0.3, "num_segmentations": 2, "report": report}
        return encode_corpus(pairs, *tokenizers, tmp_path / folder, **options)

    def report(done):
        counts.append(done)
        if done == 15:
            raise stop

    counts = []
    with pytest.raises(type(stop) if isinstance(stop, SystemExit) else stop):
        encode("ids", report)
    with open(tmp_path / "ids.part" / "source_ids.npy", "ab") as file:
        file.write(b"a chunk that is not complete")
    corpus, whole = encode("ids", counts.append), encode("whole")
    assert counts == [0, 5, 10, 15, 15, 20, 25, 30, 35, 40, 45, 46]
    assert corpus.fingerprint == whole.fingerprint
    assert stored_ends(tmp_path / "ids") == [23, 46]
    for path in (tmp_path / "ids").iterdir():
        assert path.read_bytes() == (tmp_path / "whole" / path.name).read_bytes()
    assert not (tmp_path / "ids.part").exists()


def test_identical_sides_are_counted_and_reported(tokenizers, tmp_path):
    pairs = [("a", "a"), ("b", "c"), ("d " * 20, "d " * 20), ("", ""), ("e", "e")]
    corpus = encode_corpus(pairs, *tokenizers, tmp_path / "ids", max_length=15)
    assert not corpus.has_only_copies
    assert corpus.report.startswith("3 of 5 pairs kept, 2 of them with identical sides")
    corpus = encode_corpus(pairs[4:], *tokenizers, tmp_path / "other")
    assert corpus.report.startswith("1 of 1 pairs kept, all with identical sides: is ")
    assert corpus.has_only_copies


def test_segmentations_of_a_pair_are_adjacent(tokenizers, tmp_path, monkeypatch):
    """BPE-dropout splits each text at random, here in four segmentations per pair."""
    monkeypatch.setattr(encoding, "_CHUNK_PAIRS", 7)
    pairs = list(zip(sentences(31, 3), sentences(31, 4), strict=True))
    pairs[8] = ("", "ein")

    def encode(folder, **options):
        return encode_corpus(
            pairs, *tokenizers, tmp_path / folder, bpe_dropout=0.3, **options
        )

    corpus = encode("ids", num_segmentations=4)
    assert corpus.num_pairs == 30 * 4
    assert "30 of 31 pairs kept, each in 4 segmentations; dropped: 1" in corpus.report
    kept = [number for number in range(1, 32) if number != 9]
    assert corpus.numbers(np.arange(120)).tolist() == np.repeat(kept, 4).tolist()
    different = 0
    for side in (0, 1):
        rows = [corpus.pair(row)[side].tolist() for row in range(120)]
        texts = tokenizers[side].detokenize(tf.ragged.constant(rows)).numpy()
        expected = np.repeat([pairs[number - 1][side] for number in kept], 4)
        assert [text.decode() for text in texts] == expected.tolist()
        different += sum(rows[row] != rows[row // 4 * 4] for row in range(120))
    # Of 240 texts, 180 are compared with another segmentation: three of each four.
    assert different > 120
    same, other = encode("same", num_segmentations=4), encode("other", seed=2)
    assert all(
        np.array_equal(*both)
        for row in range(120)
        for both in zip(corpus.pair(row), same.pair(row), strict=True)
    )
    assert corpus.pair(0)[0].tolist() != other.pair(0)[0].tolist()


def test_iterable_pairs_are_named_by_number(tokenizers, tmp_path):
    pairs = [("ein", "ein"), ("", "ein"), ("ein", None), ("ein", "\ud800")]
    corpus = encode_corpus(iter(pairs), *tokenizers, tmp_path / "ids")
    assert corpus.num_pairs == 1
    assert corpus.dropped["empty"]["first"] == ["pair 2"]
    assert corpus.dropped["invalid_utf8"]["first"] == ["pair 3", "pair 4"]


@pytest.mark.fault("F12", '"no training examples" with the reason and data.max_length')
@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ([("ein Mann läuft", "ein")], "longer than data.max_length"),
        ([("", "ein")], "with an empty side"),
        ([], "0 of 0"),
    ],
)
def test_corpus_without_pairs_is_rejected(tokenizers, tmp_path, pairs, reason):
    with pytest.raises(
        DataError, match=rf"no training examples: .*{reason}.*max_length=2"
    ):
        encode_corpus(pairs, *tokenizers, tmp_path / "ids", max_length=2)
    assert list(tmp_path.iterdir()) == []


def test_cache_is_reused_only_for_same_inputs(tokenizers, tmp_path):
    lines = [line.encode() for line in sentences(11, 9)]
    source = write(tmp_path / "a", lines)
    target = write(tmp_path / "b", lines[::-1])
    folder = tmp_path / "ids"

    def encode(pairs=None, tokenizers=tokenizers, max_length=256):
        """Returns the corpus, and whether its folder is new."""
        before = folder.stat().st_ino if folder.exists() else None
        pairs = pairs or TextFiles(source, target)
        corpus = encode_corpus(pairs, *tokenizers, folder, max_length=max_length)
        return corpus, folder.stat().st_ino != before

    assert encode()[1]
    corpus, again = encode()
    assert not again
    assert corpus.num_pairs == 11
    # A new modification time does not change the text.
    os.utime(source, (1, 1))
    assert not encode()[1]
    assert encode(max_length=255)[1]
    assert encode(max_length=255, tokenizers=tokenizers[::-1])[1]
    assert encode()[1]
    write(source, [*lines[:-1], lines[-1] + b" ein"])
    corpus, again = encode()
    assert again
    expected = expected_ids(tokenizers[0], (lines[-1] + b" ein").decode())
    assert corpus.pair(10)[0].tolist() == expected
    # A list has no fingerprint, so its ids are not cached.
    for _ in range(2):
        assert encode([("ein", "ein")])[1]


def test_fingerprint_covers_the_ids(tokenizers, tmp_path, monkeypatch):
    """If SentencePiece drew others, equal `inputs` would have another `fingerprint`."""
    lines = [line.encode() for line in sentences(11, 9)]
    files = TextFiles(write(tmp_path / "a", lines), write(tmp_path / "b", lines))
    options = {"bpe_dropout": 0.2, "num_segmentations": 2}

    def encode(name, **changes):
        return encode_corpus(files, *tokenizers, tmp_path / name, **(options | changes))

    first = encode("ids")
    assert encode("again").fingerprint == first.fingerprint
    assert encode("other", seed=2).inputs != first.inputs
    sample = BytePairTokenizer.sample
    monkeypatch.setattr(
        BytePairTokenizer, "sample", lambda *args: sample(*args[:-1], args[-1] + 1)
    )
    assert encode("ids").fingerprint == first.fingerprint  # the cache is reused
    other = encode("drawn otherwise")
    assert other.inputs == first.inputs
    assert other.fingerprint != first.fingerprint


@pytest.mark.parametrize("has_corpus", [False, True])
def test_folder_with_other_files_is_unchanged(tokenizers, tmp_path, has_corpus):
    if has_corpus:
        encode_corpus([("Mann", "Mann")], *tokenizers, tmp_path)
    (tmp_path / "thesis.tex").write_text("mine")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for folder, message in (("", "contains other files"), ("thesis.tex", "a folder")):
        with pytest.raises(DataError, match=message):
            encode_corpus([("ein", "ein")], *tokenizers, tmp_path / folder)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


class Ids(Pairs):
    """Pairs that are already tokenized, as in TFRecords."""

    num_calls = 0

    def fingerprint(self):
        return "ids"

    def id_chunks(self, tokenizer):
        self.num_calls += 1
        yield [tokenizer.tokenize(["ein Mann"])] * 2


def test_unfinished_folder_with_other_files_is_unchanged(tokenizers, tmp_path):
    mine = tmp_path / "ids.part" / "thesis.tex"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(DataError, match=r"ids.part: contains other files"):
        encode_corpus(Ids(), *tokenizers, tmp_path / "ids")
    assert mine.read_text() == "mine"


def test_ids_are_stored_once(tokenizers, tmp_path):
    pairs = Ids()
    for _ in range(2):
        encode_corpus(pairs, *tokenizers[:1] * 2, tmp_path / "ids")
    assert pairs.num_calls == 1


@pytest.mark.parametrize(
    "options",
    [
        {"num_segmentations": 0},
        {"num_segmentations": 2},
        {"bpe_dropout": -0.5},
        {"bpe_dropout": 1.0},
    ],
)
def test_encode_corpus_rejects_arguments_out_of_range(tokenizers, tmp_path, options):
    with pytest.raises(
        ValueError, match=r"`bpe_dropout` must be in \[0, 1\), and `num_"
    ):
        encode_corpus([("ein", "ein")], *tokenizers, tmp_path / "ids", **options)
    assert not (tmp_path / "ids").exists()


def test_corpus_of_a_linked_folder_is_replaced(tokenizers, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "ids").symlink_to("disk")
    for text in ("Mann", "ein Hund"):
        corpus = encode_corpus([(text, text)], *tokenizers, f"{tmp_path / 'ids'}/")
        assert (tmp_path / "ids").is_symlink()
        (row,) = corpus.rows("source", np.array([0]), corpus.source_lengths[0])
        assert tokenizers[0].detokenize([row]).numpy() == [text.encode()]


@pytest.mark.fault("F20", "an error before training, and no incomplete corpus")
def test_source_error_leaves_no_corpus(tokenizers, tmp_path):
    texts = gzip.compress(b"ein Mann\n" * 5003)
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.gz").write_bytes(texts)
    (data / "b.gz").write_bytes(texts[:-9])
    files = TextFiles(data / "a.gz", data / "b.gz")
    with pytest.raises(DataError, match=r"b\.gz: the gzip file is truncated"):
        encode_corpus(files, *tokenizers, tmp_path / "ids")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
