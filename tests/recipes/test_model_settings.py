"""The section `model`: sizes of heads after changes to a preset, and variations.

`variations` is the argument of `Transformer` for details in which other toolkits differ
from the paper.
"""

import pytest

from keras_transformer.recipes import dump_recipe, load_recipe, shipped_recipes


@pytest.mark.parametrize(
    ("changes", "key_dim", "value_dim"),
    [
        ("{preset: tiny}", 32, 32),
        ("{preset: tiny, d_model: 64}", 16, 16),
        ("{preset: tiny, num_heads: 8}", 16, 16),
        ("{preset: tiny, d_model: 256, num_heads: 4}", 64, 64),
        ("{preset: tiny, d_model: 64, key_dim: 5}", 5, 16),
        ("{preset: tiny, d_model: 64, value_dim: null}", 16, None),
        ("{preset: B1}", 16, 64),
        ("{preset: B1, num_heads: 8}", 16, 64),  # as in the preset
        ("{preset: B1, num_heads: 4}", 128, 128),  # 512 / 4
        ("{num_heads: 16}", 32, 32),
    ],
)
def test_model_settings_infer_key_dim_and_value_dim(
    recipe_path, changes, key_dim, value_dim
):
    model = load_recipe(recipe_path, [f"model={changes}"]).model
    assert (model.key_dim, model.value_dim) == (key_dim, value_dim)


@pytest.mark.parametrize("name", shipped_recipes())
def test_shipped_recipes_infer_the_size_of_heads(name, monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_TRANSFORMER_DATA", str(tmp_path))
    overrides = ["model.d_model=96", "model.num_heads=3"]
    if name == "files":
        overrides.append("data.train={source: a, target: b}")
    model = load_recipe(name, overrides).model
    assert (model.key_dim, model.value_dim) == (32, 32)


def test_resolved_model_settings_stay_equal_when_reloaded(recipe_path, tmp_path):
    recipe = load_recipe(recipe_path, ["model={preset: tiny, d_model: 64}"])
    dump_recipe(recipe, tmp_path / "config.yaml")
    assert load_recipe(tmp_path / "config.yaml") == recipe


def test_short_forms_set_variations(recipe_path, tmp_path):
    # `start` and `position_rates` are short forms of keys of `variations`.
    changes = ["model.start=zeros", "model.position_rates=tensor2tensor"]
    recipe = load_recipe(recipe_path, changes)
    arguments = recipe.model.constructor_arguments()
    assert arguments["variations"] == {
        "zero_start_id": 2,
        "position_rates": "tensor2tensor",
    }
    assert not {"start", "position_rates"} & arguments.keys()
    dump_recipe(recipe, tmp_path / "config.yaml")
    assert load_recipe(tmp_path / "config.yaml") == recipe
    # If both are given, the short forms replace the same keys of `variations`.
    changes += ["model.variations={position_rates: paper, attention_bias: true}"]
    recipe = load_recipe(recipe_path, [*changes, "model.start=learned"])
    assert recipe.model.constructor_arguments()["variations"] == {
        "attention_bias": True,
        "position_rates": "tensor2tensor",
    }
    # In the vocabulary of an imported Marian model, the start token is the last id.
    recipe = load_recipe(
        recipe_path,
        ["model.start=zeros", "tokenizer={kind: marian, vocabulary_size: 90}"],
    )
    assert recipe.model.variations.zero_start_id == 89
