"""Estimates of the size of the training text, for files of every kind."""

import gzip
import json
import random
import subprocess
import sys

import pytest

from keras_transformer.recipes import automatic, load_recipe
from keras_transformer.recipes.automatic import measure_training_text
from keras_transformer.recipes.data_sections import DATA_KINDS

PAIRS = [("a b", "aa"), ("é", "b"), ("x", "c d e f"), ("b c", "g")]
KINDS = ["files", "tsv", "tsv with names", "csv", "jsonl"]


def test_measuring_does_not_load_tensorflow():
    """In a command, whose first lines would otherwise take seconds."""
    code = (
        "import sys; sys.argv[0] = 'keras-transformer'; "
        f"import {automatic.__name__}; print('tensorflow' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code]) == b"False\n"


def measure(data):
    """Measures the text of a section `data`, a dict."""
    return measure_training_text(DATA_KINDS[data["kind"]].model_validate(data))


def write_text(path, lines):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    return str(path)


def write_pairs(folder, kind, suffix="", pairs=PAIRS):
    """Writes pairs in the form of a kind of data and returns the section `data`."""
    data = {"kind": kind.split()[0]}
    if kind == "files":
        sides = zip(("source", "target"), zip(*pairs, strict=True), strict=True)
        paths = {side: write_text(folder / f"{side}{suffix}", t) for side, t in sides}
        return data | {"train": {side: [path] for side, path in paths.items()}}
    if kind == "tsv":
        lines = [f"-\t{target}\t{source}" for source, target in pairs]
        data |= {"source": 3, "target": 2}
    if kind == "csv":
        lines = ['"to";"from"', *(f'"{target}";"{source}"' for source, target in pairs)]
        data |= {"source": "from", "target": "to"}
    if kind == "tsv with names":
        lines = ["to\tfrom", *(f"{target}\t{source}" for source, target in pairs)]
        data |= {"source": "from", "target": "to"}
    if kind == "jsonl":
        lines = [json.dumps({"id": 1, "t": {"en": s, "de": t}}) for s, t in pairs]
        data |= {"source": "t.en", "target": "t.de"}
    return data | {"train": [write_text(folder / f"pairs{suffix}", lines)]}


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("kind", KINDS)
def test_small_files_are_counted_exactly(tmp_path, kind, suffix):
    """Windows adds a byte order mark and "\\r", and some editors end without "\\n"."""
    data = write_pairs(tmp_path, kind, suffix)
    # Pairs, bytes of the longer side, and distinct characters (9 letters, space and
    # newline) and words of both sides.
    num_bytes = len("aa\nb\nc d e f\ng\n")
    assert measure(data) == (4, num_bytes, 11, 10)
    if kind != "files":
        assert measure({**data, "train": data["train"] * 2})[:2] == (8, 2 * num_bytes)
    for path in [] if suffix else tmp_path.iterdir():
        lines = path.read_bytes().removesuffix(b"\n").replace(b"\n", b"\r\n")
        path.write_bytes(b"\xef\xbb\xbf" + lines)
    assert measure(data) == (4, num_bytes, 11, 10)


@pytest.mark.parametrize(
    ("kind", "suffix"), [("files", ""), ("files", ".gz"), ("tsv", ""), ("jsonl", "")]
)
def test_large_files_are_extrapolated(tmp_path, monkeypatch, kind, suffix):
    random.seed(1)
    words = [f"{random.randrange(10**6)}" for _ in range(50_000)]
    monkeypatch.setattr(automatic, "_SAMPLE_BYTES", 100_000)
    pairs = zip(words, words, strict=True)
    size = measure(write_pairs(tmp_path, kind, suffix, [*pairs]))
    # The size of a compressed file is estimated less exactly, since gzip reads ahead.
    assert size.pairs == pytest.approx(50_000, rel=0.15 if suffix else 0.01)
    assert size.bytes == pytest.approx(sum(map(len, words)) + 50_000, rel=0.15)


@pytest.mark.parametrize("columns", [(9, 8), ("a", "b")])
@pytest.mark.parametrize("kind", ["tsv", "jsonl"])
def test_text_that_cannot_be_read_has_no_size(tmp_path, kind, columns):
    data = write_pairs(tmp_path, "files")
    cut = write_text(tmp_path / "cut.gz", ["a" * 100])
    with open(cut, "rb+") as file:
        file.truncate(20)
    for bad in ("nowhere", str(tmp_path), cut):
        train = {"source": data["train"]["source"], "target": [bad]}
        assert measure({"kind": "files", "train": train}) is None
    if kind == "jsonl":
        columns = map(str, columns)
    wrong = dict(zip(("source", "target"), columns, strict=True))
    assert measure({**write_pairs(tmp_path, kind), **wrong}) is None


def test_records_have_the_pairs_of_their_shards(tmp_path):
    shards = [{"name": f"{each}.tfrecord", "num_pairs": 300_000} for each in "ab"]
    for shard in shards:
        (tmp_path / shard["name"]).write_bytes(b"x" * 100)
    data = {"kind": "records", "train": str(tmp_path)}
    assert measure(data) is None
    text = json.dumps({"shards": shards, "format": 1})
    (tmp_path / "records.json").write_text(text)
    assert measure(data)[:2] == (600_000, 200)
    (tmp_path / "b.tfrecord").unlink()
    assert measure(data) is None


@pytest.mark.parametrize("kind", ["files", "tsv", "jsonl"])
def test_settings_of_a_recipe_with_only_data_fit_its_text(tmp_path, kind):
    lines, data = [], write_pairs(tmp_path, kind)
    recipe = load_recipe({"data": data}, report=lines.append)
    assert lines[0].startswith("settings for 4 pairs on ")
    assert recipe.model.size == "tiny"
    assert (recipe.training.batch_tokens, recipe.training.steps) == (1024, 1000)
