"""`ablate`, which trains the rows of the paper's Table 3, on the embedded phrases.

Rows are named by the table's groups: A2 is the second row of group (A). The argument
`scale` divides the table's widths, which gives tiny models.
"""

import csv
import json
import re

import pytest

from keras_transformer.errors import RecipeError, RunBusyError, RunError
from keras_transformer.recipes import load_recipe
from keras_transformer.runs import folder as run_folder
from keras_transformer.runs import table3
from keras_transformer.runs.report import write_table3
from keras_transformer.runs.table3 import row_recipe

SMALL = [
    "data.size=900",
    "data.held_out=20",
    "tokenizer.vocabulary_size=380",
    "training.steps=2",
    "training.keep_checkpoints=2",
    "training.average_checkpoints=1",
]


def recipe(*overrides):
    return load_recipe("phrases", [*SMALL, *overrides])


def test_expand_rows_orders_and_expands_names():
    assert table3.expand_rows("base") == ["base"]
    assert table3.expand_rows("B, big,A2,base") == ["base", "A2", "B1", "B2", "big"]
    every = table3.expand_rows("base,A,B,C,D,E,big")
    # base, 4 rows of A, 2 of B, 7 of C, 4 of D, E, and big.
    assert len(every) == 20 and every[0] == "base" and every[-2:] == ["E", "big"]
    with pytest.raises(RecipeError, match=r"in Table 3 \(base, A1, .* Received: 'F'"):
        table3.expand_rows("A,F")
    with pytest.raises(RecipeError, match="Received: 'bas'"):
        table3.expand_rows("bas")
    with pytest.raises(RecipeError, match="at least one row"):
        table3.expand_rows(" , ")


@pytest.mark.parametrize(
    ("row", "model", "training"),
    [
        ("base", {"d_model": 128, "key_dim": 16, "num_heads": 8, "dropout": 0.1}, {}),
        ("A4", {"d_model": 128, "key_dim": 4, "value_dim": 4, "num_heads": 32}, {}),
        ("B1", {"d_model": 128, "key_dim": 4, "value_dim": 16}, {}),
        ("C1", {"num_layers": 2, "d_ff": 512}, {}),
        ("C5", {"d_model": 256, "key_dim": 32, "d_ff": 512}, {}),
        ("C7", {"d_model": 128, "d_ff": 1024}, {}),
        ("D1", {"dropout": 0.0}, {"label_smoothing": 0.1}),
        ("D4", {"dropout": 0.1}, {"label_smoothing": 0.2}),
        ("E", {"positions": "learned", "max_length": 512}, {}),
        ("big", {"d_model": 256, "d_ff": 1024, "dropout": 0.3}, {"steps": 6}),
    ],
)
def test_row_recipe_matches_table_3(row, model, training):
    """The widths of Table 3 are divided by 4. Rows differ from base as in the table.

    The paper trains big for three times as many steps as base.
    """
    averaged = recipe("training.ema_momentum=0.99")
    found = table3.row_recipe(averaged, row, scale=4, seed=5)
    for name, value in model.items():
        assert getattr(found.model, name) == value, name
    expected = {"steps": 2, "average_checkpoints": 1, "seed": 5, "label_smoothing": 0.1}
    for name, value in {**expected, "ema_momentum": None, **training}.items():
        assert getattr(found.training, name) == value, name
    assert found.model.normalization == recipe().model.normalization
    assert found.data == recipe().data
    assert (found.decoding.beam_size, found.decoding.length_penalty) == (4, 0.6)


def test_row_recipe_applies_to_every_stage():
    stages = "[{steps: 2, label_smoothing: 0.3}, {steps: 3}]"
    staged = recipe("training.steps=5", f"training.stages={stages}")
    big = table3.row_recipe(staged, "big", scale=4)
    assert big.training.steps == 15
    assert [stage.steps for stage in big.training.stages] == [6, 9]
    smoothed = table3.row_recipe(staged, "D4", scale=4)
    found = [stage.settings.label_smoothing for stage in smoothed.stages]
    assert found == [0.2, 0.2]
    base = table3.row_recipe(staged, "base", scale=4)
    assert [stage.settings.label_smoothing for stage in base.stages] == [0.3, 0.1]


def test_row_recipe_rejects_indivisible_scale():
    with pytest.raises(RecipeError, match=r"row A4: key_dim=16 .* `scale` 32"):
        table3.row_recipe(recipe(), "A4", scale=32)


def result(row, perplexity=2.0, bleu=3.0):
    """Content of the `result.json` of a row."""
    stored = row_recipe(recipe(), row, 32).model_dump(mode="json")
    common = {"seed": 1, "parameters": 1, "signature": "", "seconds": 1.0}
    return {
        **{"row": row, "perplexity": perplexity, "bleu": bleu, **common},
        "recipe": stored,
    }


@pytest.mark.slow  # It trains three tiny models; the other tests write their results.
def test_ablate_trains_each_row_once(tmp_path):
    arguments = {"output": tmp_path, "scale": 32, "progress": False}
    taken = tmp_path / "runs" / "C1-seed1"
    taken.mkdir(parents=True)
    with run_folder.lock(taken, ".row.lock"):
        # Another process trains C1.
        found = table3.ablate(recipe(), ["C1", "C2"], **arguments)
        assert [each["row"] for each in found] == ["C2"]
        with pytest.raises(RunBusyError, match="C1-seed1: in use by another"):
            table3.ablate(recipe(), ["C1"], **arguments)
    with (
        run_folder.lock(taken),
        pytest.raises(RunBusyError),
    ):  # locked by `train` itself
        table3.ablate(recipe(), ["C1"], **arguments)
    assert not (taken / "result.json").exists()
    assert load_recipe(tmp_path / "config.yaml") == recipe()
    model = tmp_path / "runs" / "C2-seed1" / "model.keras"
    before, finished = model.stat().st_mtime_ns, []
    results = table3.ablate(
        recipe(),
        ["C1", "C2"],
        on_row=lambda row, seed, result: finished.append((row, seed)),
        **arguments,
    )
    assert finished == [("C1", 1), ("C2", 1)]
    assert model.stat().st_mtime_ns == before
    with open(tmp_path / "table.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["row"], row["N"]) for row in rows] == [("C1", "2"), ("C2", "4")]
    assert rows[0]["paper's BLEU"] == "23.7"
    # An embedding of 380 rows of 16. An encoder layer and a decoder layer together have
    # 4 + 8 square matrices, two feed-forward networks and 2 + 3 norms. C1 has two such
    # pairs of layers. A norm ends each pre-norm stack.
    feed_forward = 2 * 16 * 64 + 64 + 16
    layer = 12 * 16**2 + 2 * feed_forward + 5 * 2 * 16
    assert int(rows[0]["parameters"]) == 380 * 16 + 2 * layer + 2 * 2 * 16
    for row, found in zip(rows, results, strict=True):
        stored = tmp_path / "runs" / f"{row['row']}-seed1" / "result.json"
        assert json.loads(stored.read_text(encoding="utf-8")) == found
        assert float(row["BLEU"]) == round(found["bleu"], 2)
        assert found["perplexity"] > 1
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert text.count("\n| C") == 2 and "All widths are divided by 32." in text
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"steps": 3, "beta_1": 0.5},
            RecipeError,
            "(training.beta_1: 0.5 -> 0.9, training.st",
        ),
        ({"steps": "x"}, RunError, "result.json: 'recipe.training.steps' is wrong"),
    ],
)
def test_ablate_names_the_changed_keys_of_a_stored_row(
    tmp_path, change, error, message
):
    stored = result("C1")
    stored["recipe"]["training"] |= change
    path = tmp_path / "runs" / "C1-seed1" / "result.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(stored))
    with pytest.raises(error, match=re.escape(message)):
        table3.ablate(recipe(), ["C1"], tmp_path, scale=32)


def write(folder, *results):
    """Writes the tables of `(row, perplexity, BLEU)` and returns the Markdown."""
    write_table3([result(*each) for each in results], folder, 32)
    return (folder / "table.md").read_text(encoding="utf-8")


def test_table_states_runs_per_row(tmp_path):
    text = write(tmp_path, ("C1", 1.0, 10.0), ("C1", 3.0, 30.0), ("C2", 2.0, 20.0))
    assert "Each row is the mean of 1 to 2 run(s)" in text
    # C1: the means of perplexity and BLEU over two seeds, and the paper's perplexity.
    assert "| 2.0 | 20.0 | 6.11 |" in text
    text = write(tmp_path, ("C1", 1.0, 10.0), ("C1", 3.0, 30.0))
    assert "the mean of 2 run(s)" in text


def test_table_has_an_empty_cell_for_a_diverged_row(tmp_path):
    base, diverged = ("base", 2.5, 10.0), ("C1", None, 10.0)
    for rows in ((base, diverged), (diverged,), (diverged, base)):
        assert "None" not in write(tmp_path, *rows)
        with open(tmp_path / "table.csv", encoding="utf-8") as file:
            cells = {row["row"]: row["PPL"] for row in csv.DictReader(file)}
        assert cells == {name: str(value or "") for name, value, _ in rows}


def test_ablate_requires_validation_data(tmp_path):
    files = load_recipe(
        "files", ["data.train.source=a", "data.train.target=b", "training.steps=1"]
    )
    with pytest.raises(RecipeError, match=r"data\.validation"):
        table3.ablate(files, ["C1"], tmp_path, progress=False)
    assert not list(tmp_path.iterdir())
