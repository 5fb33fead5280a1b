"""Estimates of the size of the training text, for files of every kind."""

import gzip
import json
import random
import subprocess
import sys

import pytest

from keras_transformer.recipes import load_recipe, training_text
from keras_transformer.recipes.data_sections import DATA_KINDS, FilesData
from keras_transformer.recipes.training_text import measure_training_text

PAIRS = [("a b", "aa"), ("é", "b"), ("x", "c d e f"), ("b c", "g")]


def write_text(path, lines):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    return str(path)


def test_measuring_does_not_load_tensorflow():
    """In a command, whose first lines would otherwise take seconds."""
    code = (
        "import sys; sys.argv[0] = 'keras-transformer'; "
        f"import {training_text.__name__}; print('tensorflow' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code]) == b"False\n"


def measure(sources, targets):
    train = {"source": sources, "target": targets}
    return measure_training_text(FilesData.model_validate({"train": train}))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_small_files_are_counted_exactly(tmp_path, suffix):
    source = write_text(tmp_path / f"s{suffix}", ["a b", "é", "", "b c"])
    target = write_text(tmp_path / f"t{suffix}", ["aa", "b", "c d e f", "g"])
    # Pairs, bytes of the longer side, and distinct characters (8 letters, space and
    # newline) and words of both sides.
    expected = (8, 2 * len("aa\nb\nc d e f\ng\n"), 10, 9)
    assert measure([source, source], [target, target]) == expected


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_large_files_are_extrapolated(tmp_path, monkeypatch, suffix):
    random.seed(1)
    words = [f"{random.randrange(10**6)}" for _ in range(50_000)]
    path = write_text(tmp_path / f"s{suffix}", words)
    monkeypatch.setattr(training_text, "_SAMPLE_BYTES", 100_000)
    size = measure([path], [path])
    # The size of a compressed file is estimated less exactly, since gzip reads ahead.
    assert size.pairs == pytest.approx(50_000, rel=0.15 if suffix else 0.01)
    assert size.bytes == pytest.approx(sum(map(len, words)) + 50_000, rel=0.15)


def test_unreadable_files_have_no_size(tmp_path):
    good = write_text(tmp_path / "good", ["a"])
    cut = write_text(tmp_path / "cut.gz", ["a" * 100])
    with open(cut, "rb+") as file:
        file.truncate(20)
    for bad in ("nowhere", str(tmp_path), cut):
        assert measure([good], [bad]) is None
    assert measure([good], [good]) is not None


def measure_pairs(data):
    """Measures the text of a section `data`, a dict."""
    return measure_training_text(DATA_KINDS[data["kind"]].model_validate(data))


def write_pairs(folder, kind, suffix=""):
    """Writes `PAIRS` in the form of a kind of data and returns the section `data`."""
    train = {}
    for side, texts in zip(("source", "target"), zip(*PAIRS, strict=True), strict=True):
        train[side] = write_text(folder / f"{side}{suffix}", texts)
    data = {"kind": kind, "train": train}
    if kind == "tsv":
        lines = [f"-\t{target}\t{source}" for source, target in PAIRS]
        data |= {"source": 3, "target": 2}
    if kind == "csv":
        lines = ['"to";"from"', *(f'"{target}";"{source}"' for source, target in PAIRS)]
        data |= {"source": "from", "target": "to"}
    if kind == "tsv with names":
        lines = ["to\tfrom", *(f"{target}\t{source}" for source, target in PAIRS)]
        data |= {"kind": "tsv", "source": "from", "target": "to"}
    if kind == "jsonl":
        lines = [json.dumps({"id": 1, "t": {"en": s, "de": t}}) for s, t in PAIRS]
        data |= {"source": "t.en", "target": "t.de"}
    if kind != "files":
        data["train"] = [write_text(folder / f"pairs{suffix}", lines)]
    return data


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("kind", ["tsv", "tsv with names", "csv", "jsonl"])
def test_pairs_on_one_line_have_the_size_of_two_files(tmp_path, kind, suffix):
    expected = measure_pairs(write_pairs(tmp_path, "files"))
    assert expected is not None
    data = write_pairs(tmp_path, kind, suffix)
    assert measure_pairs(data) == expected
    doubled = measure_pairs({**data, "train": data["train"] * 2})
    assert doubled == (2 * expected.pairs, 2 * expected.bytes, *expected[2:])


@pytest.mark.parametrize("kind", ["files", "tsv", "tsv with names", "csv", "jsonl"])
def test_size_is_that_of_the_text_that_training_reads(tmp_path, kind):
    """Windows adds a byte order mark and "\\r", and some editors end without "\\n"."""
    data = write_pairs(tmp_path, kind)
    expected = measure_pairs(data)
    assert expected.pairs == 4
    for path in tmp_path.iterdir():
        lines = path.read_bytes().removesuffix(b"\n").replace(b"\n", b"\r\n")
        path.write_bytes(b"\xef\xbb\xbf" + lines)
    assert measure_pairs(data) == expected


@pytest.mark.parametrize("kind", ["tsv", "jsonl"])
def test_large_files_of_pairs_are_extrapolated(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(f"{__name__}.PAIRS", PAIRS * 5_000)
    expected = measure_pairs(write_pairs(tmp_path, "files"))
    monkeypatch.setattr(training_text, "_SAMPLE_BYTES", 20_000)
    size = measure_pairs(write_pairs(tmp_path, kind))
    assert size[:2] == pytest.approx(expected[:2], rel=0.05)


def test_records_have_the_pairs_of_their_shards(tmp_path):
    shards = [{"name": f"{each}.tfrecord", "num_pairs": 300_000} for each in "ab"]
    for shard in shards:
        (tmp_path / shard["name"]).write_bytes(b"x" * 100)
    path = tmp_path / "records.json"
    data = {"kind": "records", "train": str(tmp_path)}
    assert measure_pairs(data) is None
    path.write_text(json.dumps({"shards": shards, "format": 1}))
    assert measure_pairs(data)[:2] == (600_000, 200)
    (tmp_path / "b.tfrecord").unlink()
    assert measure_pairs(data) is None


@pytest.mark.parametrize("kind", ["tsv", "jsonl"])
@pytest.mark.parametrize("columns", [("9", "8"), ("a", "b")])
def test_wrong_columns_have_no_size(tmp_path, kind, columns):
    columns = map(int if kind == "tsv" and columns[0] == "9" else str, columns)
    sides = dict(zip(("source", "target"), columns, strict=True))
    assert measure_pairs({**write_pairs(tmp_path, kind), **sides}) is None


@pytest.mark.parametrize("kind", ["files", "tsv", "jsonl"])
def test_settings_of_a_recipe_with_only_data_fit_its_text(tmp_path, kind):
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps({"data": write_pairs(tmp_path, kind)}))
    lines = []
    recipe = load_recipe(path, report=lines.append)
    assert lines[0].startswith("settings for 4 pairs on ")
    assert recipe.model.size == "tiny"
    assert (recipe.training.batch_tokens, recipe.training.steps) == (1024, 1000)
