"""The command `ablate` with a stand-in for the trainings.

tests/runs/table3 tests the trainings and the table.
"""

import pytest
from commands import error_of, run_command

from keras_transformer.recipes import dump_recipe
from keras_transformer.runs import table3
from keras_transformer.saving.names import CONFIG


@pytest.fixture
def ablate(monkeypatch, tmp_path):
    """Function that runs `ablate` and returns typer's result and the calls.

    A call is a tuple of the recipe, the rows, the output folder, the scale and the
    number of seeds. The stand-in trains only the first two rows.
    """
    calls = []

    def train(recipe, rows, output, scale, num_seeds, *, progress, on_row):
        calls.append((recipe, rows, output, scale, num_seeds))
        on_row(rows[0], 1, {"perplexity": 5.678, "bleu": 12.345})
        on_row(rows[1], 1, {"perplexity": None, "bleu": 0.0})
        (output / "table.md").write_text("the table\n")
        return rows[:2]

    def run(*options, recipe="phrases"):
        command = ["ablate", recipe, "--output", tmp_path, *options]
        return run_command(*command), calls

    monkeypatch.setattr(table3, "ablate", train)
    return run


def test_ablate_trains_the_chosen_rows(ablate, tmp_path):
    options = ["--rows", "big,C2, A", "--scale", 4, "--num-seeds", 3]
    result, ((recipe, *arguments),) = ablate(*options, "--set", "training.steps=17")
    rows = ["A1", "A2", "A3", "A4", "C2", "big"]
    assert arguments == [rows, tmp_path, 4, 3]
    assert recipe.training.steps == 17
    assert result.stdout == "the table\n"
    assert result.stderr.splitlines()[-3:] == [
        "A1, seed 1: perplexity 5.68, BLEU 12.35",
        "A2, seed 1: perplexity infinite, BLEU 0.00",
        "16 of 18 runs are missing from the table, because other processes are still "
        "training them",
    ]


def test_ablate_names_an_unknown_row(ablate):
    result, calls = ablate("--rows", "base,F")
    assert "Received: 'F'" in error_of(result) and not calls


def test_ablate_keeps_auto_values_that_fit_the_row_base(ablate, tmp_path):
    """The learning rate is 0.0007 for d_model 512 and 0.005 for 64."""
    for name in ("source", "target"):
        (tmp_path / name).write_text("a b c\n" * 500)
    data = f"data.train={{source: {tmp_path}/source, target: {tmp_path}/target}}"

    def chosen(*options):
        result, calls = ablate("--set", data, *options, recipe="files")
        assert result.exit_code == 0, result.stderr
        return calls[-1][0]

    assert chosen().training.learning_rate == 0.0007
    recipe = chosen("--scale", 8)
    assert recipe.training.learning_rate == 0.005
    # A row has started, possibly on another machine.
    changed = recipe.training.model_copy(update={"learning_rate": 0.003})
    dump_recipe(recipe.model_copy(update={"training": changed}), tmp_path / CONFIG)
    (tmp_path / "runs" / "base-seed1").mkdir(parents=True)
    dump_recipe(recipe, tmp_path / "runs" / "base-seed1" / CONFIG)
    assert chosen("--scale", 8).training.learning_rate == 0.003
