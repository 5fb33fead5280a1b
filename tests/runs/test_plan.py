"""Training plans match hand counts, and planning writes no file.

A plan estimates the data, size, speed, time and memory of a training before it starts.
"""

import os
import re
from types import SimpleNamespace

import pytest

from keras_transformer.errors import DataError
from keras_transformer.recipes import load_recipe
from keras_transformer.runs import plan
from keras_transformer.runs.plan import plan_training

SMALL = (
    *("model.num_layers=1", "model.d_model=8", "model.d_ff=16", "model.num_heads=2"),
    *("tokenizer.vocabulary_size=50", "training.steps=30", "training.batch_tokens=64"),
)


@pytest.fixture
def recipe(tmp_path):
    """Recipe for 20 pairs, all of whose lines are the same 16 bytes."""
    for name in ("a", "b"):
        (tmp_path / name).write_text("a cat sat on it\n" * 20)
    files = f"data.train={{source: {tmp_path}/a, target: {tmp_path}/b}}"
    return load_recipe("files", [files, *SMALL])


def test_plan_describes_a_training_and_writes_nothing(recipe, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    found = plan_training(recipe)
    assert sorted(tmp_path.rglob("*")) == before
    # 20 lines of 16 bytes, at 4 bytes per token. 30 steps of 64 tokens are 24 epochs.
    assert found["data"] == "20 pairs, about 80 tokens per side"
    assert found["dropped"].endswith("20 pairs, without checking lengths: none")
    assert found["steps"] == "30, about 24 epochs"
    assert found["vocabulary"] == "50 subwords (bpe)"
    # Three attention sublayers, two feed-forward networks, seven norms (two of them at
    # the ends of the stacks), and embeddings of 50 ids.
    parameters = 3 * 4 * 8 * 8 + 2 * (2 * 8 * 16 + 16 + 8) + 7 * 16 + 50 * 8
    assert found["model"].startswith(f"{parameters:,} parameters (1 layer, d_model 8, ")
    speed = float(re.match(r"([\d,]+) tokens/s", found["speed"])[1].replace(",", ""))
    assert speed > 1
    assert re.match(r"about \d+ s, without validation", found["time"])
    size = r"[\d.]+ [KMG]iB"
    assert re.match(rf"about {size} of {size} \({size} free\)$", found["memory"])


@pytest.fixture
def slow_model(monkeypatch):
    """Replaces the model by one that trains on 8 tokens per second."""
    transformer = SimpleNamespace(count_params=lambda: 1)
    model = SimpleNamespace(transformer=transformer)
    monkeypatch.setattr(plan, "_training_model", lambda recipe: model)
    monkeypatch.setattr(plan, "_tokens_per_second", lambda *_: 8.0)
    monkeypatch.setattr(plan, "configure_threads", lambda *_: None)


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ([], "tiny: 4 layers, d_model 128, d_ff 256, 4 heads"),
        (["model.dropout=0.2"], "tiny: 4 layers, d_model 128, d_ff 256, 4 heads"),
        (["model.d_ff=512"], "4 layers, d_model 128, d_ff 512, 4 heads"),
        (["model.num_heads=1"], "4 layers, d_model 128, d_ff 256, 1 head"),
        (
            ["model.positions=learned", "model.max_length=256"],
            "tiny: 4 layers, d_model",
        ),
    ],
)
def test_plan_names_a_size_only_if_it_is_unchanged(recipe, slow_model, settings, sizes):
    train = recipe.data.train
    data = f"data.train={{source: {train.source}, target: {train.target}}}"
    found = plan_training(load_recipe("files", [data, "model.size=tiny", *settings]))
    assert found["model"].startswith(f"1 parameters ({sizes}")


STAGES = "training.stages=[{{steps: 10{}}}, {{steps: 5, batch_tokens: 128{}}}]"
SIMCUT = ", consistency: {kind: simcut}"
STEPS = "15 (stages: 10 + 5), about {} epochs"
TIME = "about {} min, without validation"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["training.parallel_parts=1"], {"batch": "64 tokens per side"}),
        (
            ["training.gradient_accumulation_steps=4", "training.parallel_parts=2"],
            {"batch": "64 tokens per side, split into 4 sequential x 2 parallel parts"},
        ),
        # 10 steps of 64 tokens and 5 of 128 are 16 epochs of 80 tokens. At 8 tokens/s,
        # they take 160 s.
        ([STAGES.format("", "")], {"steps": STEPS.format(16), "time": TIME.format(3)}),
        # SimCut needs two passes per batch. The speed is measured with one pass, so the
        # second stage takes twice as long.
        ([STAGES.format("", SIMCUT)], {"time": TIME.format(4)}),
        # The speed is measured with two passes, so the second stage takes half as long.
        ([STAGES.format(SIMCUT, "")], {"time": TIME.format(2)}),
        # 10 x 64 tokens are 4 epochs of 160 tokens, and 5 x 128 tokens 8 of 80.
        ([STAGES.format(", bidirectional: true", "")], {"steps": STEPS.format(12)}),
    ],
)
def test_plan_describes_batches_and_stages(recipe, slow_model, settings, expected):
    train = recipe.data.train
    data = f"data.train={{source: {train.source}, target: {train.target}}}"
    found = plan_training(load_recipe("files", [data, *SMALL, *settings]))
    assert {name: found[name] for name in expected} == expected


def test_plan_counts_the_pairs_that_training_keeps(recipe, tmp_path, slow_model):
    (tmp_path / "a").write_text("a cat sat on it\n" * 15 + " \n" * 3 + "\n" * 2)
    found = plan_training(recipe)
    assert found["data"].startswith("15 pairs, ")
    checked, _, report = found["dropped"].partition(": ")
    assert checked == "of the first 20 pairs, without checking lengths"
    places = ", ".join(f"{tmp_path}/a:{line}" for line in range(16, 21))
    assert report == f"5 with an empty side ({places})"
    with open(tmp_path / "b", "r+b") as file:
        file.write("é".encode("latin1"))
    report = plan_training(recipe)["dropped"]
    assert f"lengths: 1 not UTF-8 on a side ({tmp_path}/b:1); 5 with an" in report
    assert report.endswith("iconv -f CP1252 -t UTF-8.")
    pairs = tmp_path / "pairs"
    pairs.write_text("a cat sat on it\ta cat sat on it\n" * 20)
    tsv = load_recipe("files", [f"data={{kind: tsv, train: {pairs}}}", *SMALL])
    assert plan_training(tsv)["data"] == "20 pairs, about 80 tokens per side"


@pytest.mark.parametrize(
    ("kind", "lines", "problem"),
    [
        ("jsonl", ["{}"], ":1: data.source=source must be a key"),
        ("tsv", ["\tb"], "no training examples in the first 1 pairs: 1 with an"),
        ("files", ["a", "b"], "must have the same number of lines"),
        ("trees", ["(S"], ":1: the tree that begins on this line"),
    ],
)
def test_plan_reports_the_error_of_training(tmp_path, kind, lines, problem):
    path, other = tmp_path / "text", tmp_path / "other"
    path.write_text("".join(f"{line}\n" for line in lines))
    other.write_text("a\n")
    train = {
        "files": f"{{source: {path}, target: {other}}}",
        "trees": f"{{trees: {path}}}",
    }.get(kind, path)
    name, settings = ("craft_parsing", ()) if kind == "trees" else ("files", SMALL)
    data = f"data={{kind: {kind}, train: {train}}}"
    with pytest.raises(DataError, match=problem):
        plan_training(load_recipe(name, [data, *settings]))


@pytest.mark.timeout(60)
def test_plan_names_a_file_that_cannot_be_read(recipe, tmp_path):
    (tmp_path / "b").unlink()
    with pytest.raises(DataError, match=r"/b: no such file"):
        plan_training(recipe)
    # Opening a pipe would wait for its writer.
    os.mkfifo(tmp_path / "b")
    with pytest.raises(DataError, match=r"/b: must be a regular file, not a pipe"):
        plan_training(recipe)
