"""Saving a preset into an existing folder, which must not lose files of the user."""

import keras
import pytest
from tiny_export import tiny_model as new_tiny_model

import keras_transformer as kt
from keras_transformer.errors import ModelError


@pytest.fixture
def preset(tiny_model, tmp_path):
    """Folder of a preset, which a test may change."""
    model, tokenizer = tiny_model
    return model.save_to_preset(tmp_path / "preset", tokenizer)


def contents(folder):
    """Returns the content of each file in a folder, by path."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("assets/notes.txt", "assets/notes.txt"),
        ("assets/tokenizer/notes.txt", "assets/tokenizer/notes.txt"),
        ("assets/tokenizer/source/notes.txt", "assets/tokenizer/source/notes.txt"),
        ("assets/other/tokenizer.model", "assets/other"),
        ("README.md/notes.txt", "README.md"),
        ("runs/config.json", "runs"),
    ],
)
def test_save_refuses_a_preset_with_other_files(preset, tiny_model, path, named):
    (preset / path).parent.mkdir(exist_ok=True)
    (preset / path).write_text("mine")
    before = contents(preset)
    with pytest.raises(ModelError, match=f"contains {named}, which is not part of a"):
        tiny_model[0].save_to_preset(preset)
    assert contents(preset) == before


@pytest.mark.parametrize(
    "names",
    [["README.md"], ["config.json", "task.json"], ["assets/tokenizer/tokenizer.model"]],
)
def test_save_refuses_a_folder_without_a_complete_preset(tmp_path, tiny_model, names):
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(ModelError, match="must contain a complete preset, with config"):
        tiny_model[0].save_to_preset(tmp_path)
    assert contents(tmp_path) == before


@keras.saving.register_keras_serializable(package="tests")
def own_activation(x):
    return x


@keras.saving.register_keras_serializable(package="tests")
class OwnTransformer(kt.Transformer):
    """A model whose class `from_preset` cannot know."""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_source_length": None},
            "task.json: 'config.max_source_length' is",
        ),
        ({"max_source_length": 1}, "task.json: 'config.max_source_length' is"),
        ({"search": kt.BeamSearch(20_000)}, "task.json: 'config.search.beam_size' is"),
        (
            {"search": kt.BeamSearch(patience=float("inf"))},
            "the number 'Infinity' is not finite",
        ),
    ],
)
def test_save_refuses_settings_that_reading_refuses(
    preset, tiny_model, options, message
):
    model, tokenizer = tiny_model
    before = contents(preset)
    with pytest.raises(ModelError, match=f"cannot be stored in .*{message}"):
        model.save_to_preset(preset, tokenizer, **options)
    assert contents(preset) == before


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (
            kt.Transformer,
            {"activation": own_activation},
            "'config.activation' is",
        ),
        (OwnTransformer, {}, "'class_name' is wrong"),
    ],
)
def test_save_refuses_models_that_reading_refuses(preset, kind, changes, message):
    before = contents(preset)
    model = kind(41, 1, d_model=8, d_ff=8, num_heads=2, **changes)
    with pytest.raises(ModelError, match=f"cannot be stored in config.json: {message}"):
        model.save_to_preset(preset)
    assert contents(preset) == before


def test_save_refuses_settings_of_sampling(preset, tiny_model):
    with pytest.raises(TypeError, match="`search` must be a `BeamSearch`"):
        tiny_model[0].save_to_preset(preset, search=kt.Sampling())


@pytest.mark.parametrize("dtype", [None, "float16"])
def test_presets_keep_bfloat16(tmp_path, dtype):
    model, _ = new_tiny_model(dtype="bfloat16")
    loaded = kt.Transformer.from_preset(model.save_to_preset(tmp_path, dtype=dtype))
    for ours, stored in zip(loaded.weights, model.weights, strict=True):
        assert ours.dtype == stored.dtype == "bfloat16"
        assert keras.ops.all(ours == stored)


def test_save_replaces_an_empty_folder_and_tokenizers_of_all_kinds(
    preset, tiny_model, tmp_path
):
    model, _ = tiny_model
    (tmp_path / "empty").mkdir()
    model.save_to_preset(tmp_path / "empty")
    folder = preset / "assets" / "tokenizer"
    for name in ("source/tokenizer.model", "target/tokenizer.json", "tokenizer.marian"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    model.save_to_preset(preset)
    assert contents(preset).keys() == {
        preset / name for name in ("config.json", "metadata.json", "model.weights.h5")
    }


def test_save_keeps_the_readme_unless_given_another(preset, tiny_model):
    model, _ = tiny_model
    (preset / "README.md").write_text("mine")
    (preset / "MODEL_CARD.md").write_text("of the previous model")
    model.save_to_preset(preset)
    assert (preset / "README.md").read_text() == "mine"
    assert not (preset / "MODEL_CARD.md").exists()
    model.save_to_preset(preset, texts={"README.md": "new"})
    assert (preset / "README.md").read_text() == "new"
