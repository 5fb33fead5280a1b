"""A run's checkpoint is compared with its recipe before a model is built."""

import numpy as np
import pytest
from tiny_export import open_translator, tiny_model

from keras_transformer.decoding import BeamSearch
from keras_transformer.errors import ModelError, UserError
from keras_transformer.export import export_preset, export_translator
from keras_transformer.interop import export_huggingface, export_marian
from keras_transformer.recipes import dump_recipe, load_recipe
from keras_transformer.runs.average import average_run
from keras_transformer.saving.checkpoints import path_in_model
from keras_transformer.saving.info import model_info
from keras_transformer.saving.load import load_model
from keras_transformer.saving.preset import save_preset
from keras_transformer.saving.stored_weights import check_finite
from keras_transformer.transformer import Transformer

MODEL = {
    **{"num_layers": 2, "d_model": 24, "d_ff": 40, "num_heads": 3},
    "normalization": "post",
}


@pytest.fixture
def write_run(tiny_model, tmp_path):
    """Function that writes a run without `model.keras`, with other sizes in its recipe.

    The checkpoint contains the weights of the tiny model.
    """
    model, tokenizer = tiny_model

    def write_run(**changes):
        keys = [f"model.{name}={value}" for name, value in {**MODEL, **changes}.items()]
        recipe = load_recipe("phrases", [*keys, "tokenizer.vocabulary_size=300"])
        folder = tmp_path / "run"
        (folder / "checkpoints").mkdir(parents=True)
        dump_recipe(recipe, folder / "config.yaml")
        tokenizer.save(folder / "tokenizer")
        weights = {
            f"weights/{path_in_model(weight, model)}": weight.numpy()
            for weight in model.weights
        }
        np.savez(folder / "checkpoints/ckpt-1.npz", **weights)
        return folder

    return write_run


@pytest.fixture
def built(monkeypatch):
    """List that receives each `Transformer` that is built."""
    built, real = [], Transformer.build

    def build(model, *arguments, **options):
        built.append(model)
        return real(model, *arguments, **options)

    monkeypatch.setattr(Transformer, "build", build)
    return built


def test_checkpoint_of_a_matching_run_is_loaded(tiny_model, write_run, built):
    folder = write_run()
    _, _, model = load_model(folder)
    assert len(built) == 1
    for found, expected in zip(model.weights, tiny_model[0].weights, strict=True):
        np.testing.assert_array_equal(found.numpy(), expected.numpy())


@pytest.mark.timeout(120)
@pytest.mark.parametrize("changes", [{"num_layers": 500}, {"d_ff": 2_000_000}])
@pytest.mark.parametrize("load", [load_model, average_run])
def test_recipe_with_more_weights_than_the_checkpoint_builds_no_model(
    write_run, built, changes, load
):
    folder = write_run(**changes)
    with pytest.raises(UserError, match=r"the settings describe [\d,]+ "):
        load(folder)
    assert built == []


@pytest.mark.timeout(120)
def test_info_counts_weights_without_building_a_model(tiny_model, write_run, built):
    folder = write_run(num_layers=500)
    assert model_info(folder)["parameters"] == tiny_model[0].count_params()
    assert built == []


@pytest.mark.timeout(120)
def test_damaged_checkpoint_builds_no_model(write_run, built, caplog):
    folder = write_run()
    (path,) = folder.glob("checkpoints/*.npz")
    path.write_bytes(path.read_bytes()[:-1000])
    for load in (load_model, average_run):
        with pytest.raises(UserError, match="no readable checkpoint"):
            load(folder)
    assert "ckpt-1.npz: damaged" in caplog.text
    assert model_info(folder)["parameters"] is None
    assert built == []


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_models_with_weights_that_are_not_finite_are_refused(tmp_path, value):
    model, tokenizer = tiny_model(num_layers=1)
    model.encoder.layers[0].feed_forward.inner_dense.bias.assign(
        np.full(40, value, "float32")
    )
    message = "the weight .*/bias.* contains NaN or infinity"
    translator = open_translator(model, tokenizer, BeamSearch())
    exports = export_translator, export_preset, export_marian, export_huggingface
    for export in exports:
        with pytest.raises(ModelError, match=message):
            export(translator, tmp_path / "export")
    save_preset(model, tmp_path / "preset", tokenizer)
    with pytest.raises(ModelError, match=f"preset: {message}"):
        load_model(tmp_path / "preset")
    # TensorFlow's variables, as in a SavedModel.
    with pytest.raises(ModelError, match=f"1: {message}"):
        check_finite("1", [each.value for each in model.variables])
    if np.isnan(value):
        with pytest.raises(ModelError, match="NaN or infinity for a text"):
            translator.translate(["der Hund"])
