"""Finished seeds of `repeat`: their test text, and reports that omit some.

No test trains a model: each writes the files of finished seeds.
"""

import json

import pytest
from typer.testing import CliRunner

from keras_transformer.cli.app import app
from keras_transformer.errors import DataError, RunError
from keras_transformer.runs.repeat import repeat
from keras_transformer.recipes import load_recipe


def recipe_of(folder):
    """Writes a training and a test set of two pairs and returns their recipe."""
    settings = [
        "model.size=tiny",
        "training.steps=1",
        "tokenizer.vocabulary_size=300",
    ]
    for split in ("train", "test"):
        for side, text in (("source", "one\ntwo\n"), ("target", "eins\nzwei\n")):
            path = folder / f"{split}.{side}"
            path.write_text(text)
            settings.append(f"data.{split}.{side}={path}")
    return load_recipe("files", settings)


def write_finished_seed(folder):
    """Writes the files of a seed that was scored on the test set of `recipe_of`."""
    folder.mkdir(parents=True)
    numbers = dict.fromkeys(("bleu", "chrf", "perplexity", "seconds"), 1.0)
    rest = {"bleu_interval": [0.0, 1.0], "parameters": 1, "signatures": []}
    result = {"seed": int(folder.name.partition("-")[2]), **numbers, **rest}
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "test.txt").write_text("ein\nzwo\n")
    (folder / "sources.txt").write_text("one\ntwo\n")
    (folder / "references.txt").write_text("eins\nzwei\n")


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"source": "one\nTWO\n"}, "seed-2/sources.txt"),
        ({"target": "eins\ndrei\n"}, "seed-1/references.txt"),
        # A pair without a target is omitted.
        ({"target": "eins\n\n"}, "seed-1/references.txt"),
    ],
)
def test_repeat_refuses_seeds_with_other_test_text(tmp_path, changes, name):
    recipe, output = recipe_of(tmp_path), tmp_path / "seeds"
    for seed in (1, 2):
        write_finished_seed(output / f"seed-{seed}")
    # Old results have no sources.
    (output / "seed-1" / "sources.txt").unlink()
    assert len(repeat(recipe, [1, 2], output)) == 2
    for side, text in changes.items():
        (tmp_path / f"test.{side}").write_text(text)
    message = rf"{name}: differs from data\.test.* Delete .*{name[:6]}/result\.json"
    with pytest.raises(DataError, match=message):
        repeat(recipe, [1, 2], output)
    # The old report remains.
    assert len(json.loads((output / "results.json").read_text())["seeds"]) == 2


def test_report_names_finished_seeds_that_it_omits(tmp_path):
    recipe, output = recipe_of(tmp_path), tmp_path / "seeds"
    for seed in (2, 4, 10):
        write_finished_seed(output / f"seed-{seed}")
    # An unfinished seed, and a folder that is no seed.
    (output / "seed-5").mkdir()
    write_finished_seed(tmp_path / "seed-6")
    (tmp_path / "seed-6").rename(output / "seed-copy")
    report = output / "results.md"
    repeat(recipe, [4], output)
    assert "\nFinished seeds that this report omits: 2, 10. " in report.read_text()
    repeat(recipe, [10, 2, 4], output)
    assert "omits" not in report.read_text()


def test_damaged_result_is_named(tmp_path):
    folder = tmp_path / "seeds" / "seed-1"
    write_finished_seed(folder)
    (folder / "result.json").write_text('{"seed": "1"}')
    with pytest.raises(RunError, match=r"seed-1/result\.json"):
        repeat(recipe_of(tmp_path), [1], tmp_path / "seeds")


def test_compare_refuses_seeds_with_different_references(tmp_path):
    recipe = recipe_of(tmp_path)
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        for seed in (1, 2):
            write_finished_seed(folder / f"seed-{seed}")
        repeat(recipe, [1, 2], folder)
    command = ["compare", *map(str, folders), "--samples=9"]
    assert CliRunner().invoke(app, command).exit_code == 0
    # The number of lines is unchanged.
    path = folders[1] / "seed-2" / "references.txt"
    path.write_text("eins\ndrei\n")
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 2
    first = folders[1] / "seed-1" / "references.txt"
    assert f"{first} and {path}: must be equal" in found.stderr
