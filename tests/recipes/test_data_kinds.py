"""Recipes with the data kinds tsv, jsonl and hf, and with `tokenizer.model`.

The kind hf means a dataset of Hugging Face: a name on the Hub or a local folder.
"""

import pytest
from recipe_errors import recipe_error

from keras_transformer.recipes import load_recipe


def test_load_recipe_makes_paths_of_other_kinds_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokenizer = "tokenizer.model=a.model"
    recipe = load_recipe("files", ["data={kind: tsv, train: [a, b]}", tokenizer])
    assert recipe.data.train == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert recipe.data.validation is None
    assert recipe.tokenizer.model == str(tmp_path / "a.model")
    recipe = load_recipe("files", ["data={kind: hf, name: some/data}"])
    assert recipe.data.name == "some/data"
    (tmp_path / "some" / "data").mkdir(parents=True)
    recipe = load_recipe("files", ["data={kind: hf, name: some/data}"])
    assert recipe.data.name == str(tmp_path / "some" / "data")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["data={kind: tsv, train: a, source: 0}"],
            "data.source: must be a column number",
        ),
        (["data={kind: jsonl, train: a, source: 1}"], "data.source must be a valid"),
        (["data={kind: hf, train: train}"], "data.name must be given"),
        (["tokenizer={kind: word_piece, model: a}"], "so kind must be bpe"),
        (
            ["data={kind: records, train: a}", "tokenizer.model=b"],
            "tokenizer.model is not available with data.kind: records",
        ),
    ],
)
def test_load_recipe_rejects_invalid_keys_of_other_kinds(overrides, message):
    files = "data.train={source: a, target: b}"
    assert message in recipe_error("files", files, *overrides)


def test_load_recipe_rejects_an_extreme_weight():
    data = "data={kind: trees, train: {trees: a, weights: [1e300]}}"
    message = recipe_error("craft_parsing", data)
    assert "data.train.weights.0 must be less than or equal to 1000" in message
