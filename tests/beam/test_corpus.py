"""A corpus that Apache Beam encodes on two workers, and training on it."""

import gzip
import json
import shutil

import numpy as np
import pytest

from keras_transformer.errors import DataError
from keras_transformer.pipelines import (
    EncodedCorpus,
    RecordFolder,
    encode_corpus,
    train_tokenizer,
)
from keras_transformer.recipes import load_recipe
from keras_transformer.runs.train import train
from keras_transformer.saving.checkpoints import average_checkpoints
from keras_transformer.saving.load import load_run

pytest.importorskip("apache_beam", reason="needs the extra apache-beam")

from keras_transformer.beam import corpus as beam_corpus
from keras_transformer.beam import run as beam_run

WORDS = ["ein", "Mann", "rides", "Hund", "läuft", "bike", "the", "schnell", "27", "."]
TWO_WORKERS = ["direct_num_workers=2", "direct_running_mode=multi_processing"]
MAX_LENGTH = 100
MAX_RATIO = 8.0
SHARDS = 4


def random_line(rng):
    return " ".join(rng.choice(WORDS, rng.integers(3, 9)))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Triple of a folder with three pairs of files, the pairs to keep, and a tokenizer.

    Each pair of files contains every kind of pair that must be dropped. The pairs
    (source, target) to keep are in the order of the files.
    """
    folder = tmp_path_factory.mktemp("text")
    rng = np.random.default_rng(1)
    kept, seen = [], set()
    for number in range(3):
        pairs = [(random_line(rng), random_line(rng)) for _ in range(60)]
        pairs[7] = ("", "leer")
        pairs[9] = (" ".join(["Hund"] * 200), "lang")
        pairs[20] = ("ein", " ".join(["Mann"] * 20))
        pairs[30] = ("der Hund 1", "the dog 1")  # once in every file
        ending = ".gz" if number == 1 else ""
        for side, name in enumerate(("en", "de")):
            rows = [pair[side].encode() for pair in pairs]
            if side == 0:
                rows[40] = b"\xff\xfe"
            text = b"".join(row + b"\n" for row in rows)
            opened = gzip.open if ending else open
            with opened(folder / f"{number}.{name}{ending}", "wb") as file:
                file.write(text)
        for place, pair in enumerate(pairs):
            if place in (7, 9, 20, 40) or pair in seen:
                continue
            seen.add(pair)
            kept.append(pair)
    tokenizer = train_tokenizer("bpe", [text for pair in kept for text in pair], 300)
    tokenizer.save(folder / "tokenizer")
    return folder, kept, tokenizer


def encode(folder, output, options=(), names=("0{}", "1{}.gz", "2{}"), **changes):
    """Encodes the files `names`, in which {} stands for .en or .de, into `output`."""
    return beam_corpus.encode_with_apache_beam(
        [folder / name.format(".en") for name in names],
        [folder / name.format(".de") for name in names],
        folder / "tokenizer",
        output,
        **{
            "shards": SHARDS,
            "max_length": MAX_LENGTH,
            "max_ratio": MAX_RATIO,
            "deduplicate": True,
            **changes,
        },
        pipeline_options=[f"--{option}" for option in options],
    )


@pytest.fixture(scope="module")
def records(corpus, tmp_path_factory):
    """Pair of a folder that two processes wrote, and the summary of its corpus."""
    output = tmp_path_factory.mktemp("records")
    return output, encode(corpus[0], output, TWO_WORKERS)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.tfrecord")}


def test_corpus_keeps_and_drops_pairs(corpus, records, tmp_path):
    _, kept, tokenizer = corpus
    output, summary = records
    assert summary == json.loads((output / "records.json").read_text())
    assert summary["num_read"] == 180
    assert summary["num_pairs"] == len(kept)
    assert sum(shard["num_pairs"] for shard in summary["shards"]) == len(kept)
    assert len(summary["shards"]) == SHARDS
    assert summary["dropped"]["invalid_utf8"] == 3
    assert summary["dropped"]["empty"] == 3
    # Every file contains the same pair that is too long and the same pair of very
    # different lengths. Their second and third occurrences count as duplicates.
    assert summary["dropped"]["too_long"] == 1
    assert summary["dropped"]["uneven"] == 1
    assert sum(summary["dropped"].values()) == 180 - len(kept)

    # The expected ids come from tokenizing the same pairs in this process.
    ids = encode_corpus(
        RecordFolder(output), tokenizer, tokenizer, tmp_path / "a", MAX_LENGTH
    )
    texts = encode_corpus(kept, tokenizer, tokenizer, tmp_path / "b", MAX_LENGTH)

    def pairs(encoded_corpus):
        rows = map(encoded_corpus.pair, range(encoded_corpus.num_pairs))
        return sorted((tuple(source), tuple(target)) for source, target in rows)

    assert pairs(ids) == pairs(texts)
    assert len(pairs(ids)) == len(kept) > 150


def test_corpus_is_independent_of_workers(corpus, records, tmp_path):
    """One worker writes the same files as the two workers of `records`."""
    encode(corpus[0], tmp_path)
    assert content(tmp_path) == content(records[0])
    assert sorted(content(tmp_path)) == [
        f"records-{shard:05}-of-00004.tfrecord" for shard in range(SHARDS)
    ]


def test_training_on_records_resumes_exactly(corpus, records, tmp_path):
    kept, output = corpus[1], records[0]

    def run(name, steps):
        recipe = load_recipe(
            "files",
            [
                "data.kind=records",
                f"data.train={output}",
                "data.validation=null",
                f"data.max_length={MAX_LENGTH}",
                "model.num_layers=1",
                "model.d_model=16",
                "model.d_ff=24",
                "model.num_heads=2",
                "training.batch_tokens=300",
                f"training.steps={steps}",
                "training.warmup_steps=8",
                "training.average_checkpoints=1",
            ],
        )
        return train(recipe, tmp_path / name, progress=False)

    run("whole", 9)
    run("cut", 4)
    summary = run("cut", 9)
    assert summary["train pairs"] == f"{len(kept)} of {len(kept)} pairs kept"
    states = []
    for name in ("whole", "cut"):
        _, tokenizer, model = load_run(tmp_path / name)
        assert tokenizer.fingerprint() == corpus[2].fingerprint()
        average_checkpoints(model, tmp_path / name / "checkpoints", 1)
        states.append(model.get_weights())
    for value, expected in zip(*states, strict=True):
        np.testing.assert_array_equal(value, expected)


SHARD = "records-00002-of-00004.tfrecord"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (SHARD, lambda path: path.write_bytes(path.read_bytes()[:-7])),
        (SHARD, lambda path: path.write_bytes(path.read_bytes()[::-1])),
        (SHARD, lambda path: path.write_bytes(b"")),
        (SHARD, lambda path: path.unlink()),
        ("tokenizer", lambda path: train_tokenizer("bpe", WORDS * 9, 290).save(path)),
    ],
)
def test_damaged_records_are_rejected(records, tmp_path, name, change):
    copy = tmp_path / "copy"
    shutil.copytree(records[0], copy)
    change(copy / name)
    with pytest.raises(DataError, match=name):
        folder = RecordFolder(copy)
        tokenizer = folder.tokenizer()
        encode_corpus(folder, tokenizer, tokenizer, tmp_path / "ids", MAX_LENGTH)
    assert not (tmp_path / "ids").exists()


def test_records_reject_other_tokenizer_and_segmentation(records, tmp_path):
    source, other = RecordFolder(records[0]), train_tokenizer("bpe", WORDS * 9, 290)
    with pytest.raises(DataError, match="different tokenizer than the run's"):
        encode_corpus(source, other, other, tmp_path / "ids", MAX_LENGTH)
    tokenizer = source.tokenizer()
    arguments = (source, tokenizer, tokenizer, tmp_path / "ids", MAX_LENGTH)
    before = encode_corpus(*arguments)
    with pytest.raises(DataError, match=r"already contain ids.* bpe_dropout=0\.1"):
        encode_corpus(*arguments, bpe_dropout=0.1, num_segmentations=3)
    assert EncodedCorpus.load(tmp_path / "ids").fingerprint == before.fingerprint


# Files that cannot be encoded: the text of either side, and the error.
@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("one\n", "eins\nzwei\n", r"same number of .*x\.en ends after line 1"),
        ("", "", r"0 pairs read, dropped: none\.$"),
        ("Hund " * 99, "Hund", r"1 pairs read, dropped: 1 longer than max_length\.$"),
        (None, "Hund", r"x\.en: cannot be read \(.*\)\.$"),
    ],
)
@pytest.mark.parametrize("exists", [False, True])
def test_failed_preparation_leaves_no_corpus(
    corpus, tmp_path, source, target, message, exists
):
    """It removes its folder, unless the folder existed before."""
    output = tmp_path / "output"
    for name, text in (("x.en", source), ("x.de", target)):
        if text is not None:
            (tmp_path / name).write_text(text)
    corpus[2].save(tmp_path / "tokenizer")
    if exists:
        output.mkdir()
    with pytest.raises(DataError, match=message):
        encode(tmp_path, output, names=["x{}"])
    assert output.exists() == exists
    assert not list(tmp_path.rglob("records.json"))
    with pytest.raises(DataError, match=r"records.json: no such file"):
        RecordFolder(output)
    with pytest.raises(DataError, match="no readable encoded corpus"):
        EncodedCorpus.load(output)


@pytest.mark.parametrize(
    ("output", "options", "message"),
    [
        (None, [], "already contains a corpus"),
        ("a", ["runner=Nope"], "Beam rejects the options '--runner=Nope'"),
        ("none://bucket/a", [], r"^none://bucket/a: cannot be created \("),
    ],
)
def test_corpus_rejects_invalid_arguments(
    corpus, records, tmp_path, monkeypatch, output, options, message
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=message):
        encode(corpus[0], output or records[0], options)
    assert not list(tmp_path.iterdir())


def test_truncated_gzip_file_is_an_error(corpus, tmp_path):
    whole = (corpus[0] / "1.en.gz").read_bytes()
    (corpus[0] / "torn.en.gz").write_bytes(whole[: len(whole) // 2])
    (corpus[0] / "torn.de.gz").write_bytes((corpus[0] / "1.de.gz").read_bytes())
    with pytest.raises(DataError, match=r"torn.en.gz: the gzip file is truncated"):
        encode(corpus[0], tmp_path / "a", names=["torn{}.gz"])
    assert not (tmp_path / "a").exists()


def test_failed_preparation_keeps_the_corpus_of_another_run(
    corpus, tmp_path, monkeypatch
):
    """Another run finishes in the folder that the failing run created."""
    folder, kept, _ = corpus
    run_pipeline = beam_corpus.run_pipeline

    def finish_another_run(build, options):
        monkeypatch.setattr(beam_corpus, "run_pipeline", run_pipeline)
        encode(folder, tmp_path / "a")
        raise DataError("failed")

    monkeypatch.setattr(beam_corpus, "run_pipeline", finish_another_run)
    with pytest.raises(DataError, match="failed"):
        encode(folder, tmp_path / "a")
    records = RecordFolder(tmp_path / "a")
    assert records.facts["num_pairs"] == len(kept)
    assert records.tokenizer() and records.fingerprint()


@pytest.mark.parametrize("step", ["create", "rename"])
def test_write_file_leaves_no_temporary_file(tmp_path, monkeypatch, step):
    def fail_after_one_chunk():
        yield b"text"
        assert len(list(tmp_path.iterdir())) == 1
        raise OSError("failed")

    def fail(*paths):
        raise OSError("failed")

    chunks = [b"text"] if step == "rename" else fail_after_one_chunk()
    if step == "rename":
        monkeypatch.setattr(beam_run.FileSystems, "rename", fail)
    with pytest.raises(OSError, match="failed"):
        beam_run.write_file(str(tmp_path / "a"), chunks)
    assert not list(tmp_path.iterdir())


def test_failed_preparation_deletes_nothing_on_an_object_store(monkeypatch):
    deleted = []
    # An object store reports that a folder does not exist even if it contains files.
    monkeypatch.setattr(beam_run.FileSystems, "exists", lambda path: False)
    monkeypatch.setattr(beam_run.FileSystems, "mkdirs", lambda path: None)
    monkeypatch.setattr(beam_run.FileSystems, "delete", deleted.append)
    with (
        pytest.raises(DataError, match="failed"),
        beam_run.output_folder("store://bucket/ids/"),
    ):
        raise DataError("failed")
    assert not deleted
