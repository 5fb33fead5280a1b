"""Recipes that `init` writes."""

import os

import pytest
from commands import error_of, run_command

from keras_transformer.recipes import load_recipe, packaged_recipes


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_TRANSFORMER_DATA", str(tmp_path))
    return tmp_path


def test_init_writes_a_commented_recipe_for_two_files(folder):
    arguments = ["--source", "my train: 1.en", "--target", "train.de"]
    result = run_command("init", "my.yaml", *arguments)
    assert (result.exit_code, result.stdout) == (0, "my.yaml\n"), result.stderr
    assert "keras-transformer train my.yaml --output runs/mine" in result.stderr
    recipe = load_recipe("my.yaml")
    assert recipe.data.train.source == [os.path.abspath("my train: 1.en")]
    assert recipe.data.train.target == [os.path.abspath("train.de")]
    text = (folder / "my.yaml").read_text()
    assert "#   keras-transformer train my.yaml --output runs/mine\n" in text
    packaged = load_recipe("files", ["data.train={source: a, target: b}"])
    assert recipe.model_dump(exclude={"data"}) == packaged.model_dump(exclude={"data"})
    assert text.count("#") > 40


def test_init_without_files_names_the_key_to_edit(folder):
    result = run_command("init")
    assert (result.exit_code, result.stdout) == (0, "recipe.yaml\n")
    assert result.stderr.startswith("edit data.train, then: keras-transformer train ")


@pytest.mark.parametrize("name", packaged_recipes())
def test_init_copies_every_packaged_recipe(folder, name):
    assert run_command("init", "copy.yaml", "--recipe", name).exit_code == 0
    own = name in ("files", "student")  # for texts of the user
    files = ["data.train={source: a, target: b}"] if own else []
    assert load_recipe("copy.yaml", files) == load_recipe(name, files)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["my.txt"], "my.txt: the name of a recipe must end in .yaml or .yml"),
        (["folder.yaml", "--force"], "folder.yaml: is a folder. Choose another name"),
        (["nowhere/my.yaml"], "the folder nowhere does not exist"),
        (
            ["old.yaml"],
            "old.yaml: already exists. Choose another name, or pass --force",
        ),
        (["a.yaml", "--source", "b"], "--source and --target: pass both or neither"),
        (
            ["a.yaml", "--recipe", "wmt"],
            "wmt: no packaged recipe of that name. Packaged: ",
        ),
        (
            ["a.yaml", "--recipe", "phrases", "-s", "b", "-t", "c"],
            "phrases: the recipe already names its training text",
        ),
    ],
)
def test_init_reports_mistakes(folder, arguments, message):
    (folder / "old.yaml").write_text("mine")
    (folder / "folder.yaml").mkdir()
    assert message in error_of(run_command("init", *arguments))
    assert (folder / "old.yaml").read_text() == "mine"


def test_init_overwrites_with_force(folder):
    (folder / "old.yaml").write_text("mine")
    assert run_command("init", "old.yaml", "--force").exit_code == 0
    assert "training:" in (folder / "old.yaml").read_text()
