"""Saving and loading presets, also damaged ones and those on the Hugging Face Hub.

A preset is a folder in KerasHub's format, with a model, its tokenizer, and in task.json
its search options.
"""

import json
import shutil

import h5py
import keras
import malicious_files as malicious
import numpy as np
import pytest
from tiny_export import TEXTS
from tiny_export import tiny_model as new_tiny_model

import keras_transformer as kt
from keras_transformer.errors import ModelError, UserError
from keras_transformer.saving.info import model_info
from keras_transformer.saving.load import recipe_keys
from keras_transformer.saving.names import packaged_models

SEARCH = kt.BeamSearch(beam_size=3, length_penalty=1.0, extra_length=7)


@pytest.fixture(scope="module")
def preset(tiny_model, tmp_path_factory):
    model, tokenizer = tiny_model
    folder = tmp_path_factory.mktemp("presets") / "tiny"
    return model.save_to_preset(folder, tokenizer, search=SEARCH, max_source_length=33)


@pytest.fixture
def copied(preset, tmp_path):
    """A copy of the preset that a test may damage."""
    return shutil.copytree(preset, tmp_path / "copied")


def edit(path, **changes):
    """Replaces keys of a JSON file. `a__b` addresses the key `b` in the object `a`."""
    content = json.loads(path.read_text())
    for key, value in changes.items():
        *parents, leaf = key.split("__")
        section = content
        for name in parents:
            section = section[name]
        section[leaf] = value
    path.write_text(json.dumps(content))


def test_preset_has_kerashubs_files_and_keys(preset, tiny_model):
    from keras_hub.src.utils import preset_utils as kerashub

    model, tokenizer = tiny_model
    names = {
        *(kerashub.CONFIG_FILE, kerashub.METADATA_FILE, kerashub.MODEL_WEIGHTS_FILE),
        *(kerashub.TOKENIZER_CONFIG_FILE, kerashub.TASK_CONFIG_FILE),
        f"{kerashub.TOKENIZER_ASSET_DIR}/tokenizer.model",
    }
    found = {
        str(path.relative_to(preset)) for path in preset.rglob("*") if path.is_file()
    }
    assert found == names
    config = json.loads((preset / "config.json").read_text())
    assert set(config) == {"module", "class_name", "config", "registered_name"}
    assert config["class_name"] == "Transformer"
    assert config["config"]["d_model"] == 24
    metadata = json.loads((preset / "metadata.json").read_text())
    assert metadata["parameter_count"] == model.count_params()
    assert metadata["keras_version"] == keras.version()
    assert metadata["tasks"] == ["Translator"]
    stored = preset / "assets" / "tokenizer" / "tokenizer.model"
    assert stored.read_bytes() == tokenizer.model


def test_kerashub_loads_the_model_of_a_preset(preset, tiny_model):
    """KerasHub's own loader reads the files, once this package is imported."""
    from keras_hub.src.utils.preset_utils import get_preset_loader

    loader = get_preset_loader(str(preset))
    backbone = loader._load_serialized_object(loader.config)
    backbone.build({"source_ids": (None, None), "target_ids": (None, None)})
    loader._load_backbone_weights(backbone)
    model, _ = tiny_model
    for ours, theirs in zip(model.get_weights(), backbone.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_open_model_translates_with_the_preset(preset, tiny_model):
    model, tokenizer = tiny_model
    translator = kt.Translator(model, tokenizer, search=SEARCH, max_source_length=33)
    opened = kt.open_model(preset)
    assert opened.translate(TEXTS) == translator.translate(TEXTS)
    assert (opened.search, opened.max_source_length) == (SEARCH, 33)
    assert opened.path == preset and opened.data is None
    assert isinstance(opened.model, kt.Transformer)
    assert opened.tokenizer.fingerprint() == tokenizer.fingerprint()


def test_from_preset_restores_weights_and_applies_changes(preset, tiny_model):
    model, _ = tiny_model
    loaded = kt.Transformer.from_preset(str(preset), dropout=0.0, name="loaded")
    assert (loaded.dropout, loaded.name, model.dropout) == (0.0, "loaded", 0.1)
    for ours, stored in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, stored)


def test_from_preset_rejects_wrong_arguments(preset, tmp_path):
    with pytest.raises(ModelError, match=r"missing: no such file or folder, and no pa"):
        kt.Transformer.from_preset("missing")
    with pytest.raises(ModelError, match="contains no model"):
        kt.Transformer.from_preset(tmp_path)
    with pytest.raises(ModelError, match="parameters, but the file contains"):
        kt.Transformer.from_preset(preset, num_layers=3)
    # Keras would load the first layer and ignore the rest.
    with pytest.raises(ModelError, match="of 43 layers, but the model has only 22"):
        kt.Transformer.from_preset(preset, num_layers=1)


def test_from_preset_of_a_subclass_returns_the_subclass(preset, tiny_model):
    class Silent(kt.Transformer):
        def call(self, inputs, training=None):
            return 0 * super().call(inputs, training=training)

    model, _ = tiny_model
    loaded = Silent.from_preset(preset)
    for ours, stored in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, stored)
    ids = np.array([[2, 9, 7]])
    assert not np.any(loaded({"source_ids": ids, "target_ids": ids}))


def test_half_precision_halves_the_weights(preset, tiny_model, tmp_path):
    model, tokenizer = tiny_model
    folder = model.save_to_preset(tmp_path / "half", tokenizer, dtype="float16")
    sizes = [(each / "model.weights.h5").stat().st_size for each in (preset, folder)]
    assert sizes[1] < 0.5 * sizes[0]
    loaded = kt.Transformer.from_preset(folder)
    for half, full in zip(loaded.get_weights(), model.get_weights(), strict=True):
        assert half.dtype == np.float32
        np.testing.assert_array_equal(half, full.astype("float16"))
    with pytest.raises(ValueError, match='must be `None` or "float16"'):
        model.save_to_preset(tmp_path / "other", dtype="int8")


def test_half_precision_rejects_weights_beyond_its_range(tmp_path):
    model, _ = new_tiny_model()
    weight = model.encoder.layers[0].feed_forward.inner_dense.bias
    weight.assign(np.full(weight.shape, 70_000.0))
    with pytest.raises(ModelError, match="a weight exceeds the range of float16"):
        model.save_to_preset(tmp_path / "half", dtype="float16")
    assert list(tmp_path.iterdir()) == []


def test_save_replaces_presets_only(preset, tiny_model, tmp_path, copied):
    model, _ = tiny_model
    assert model.save_to_preset(copied) == copied
    names = {path.name for path in copied.iterdir()}
    assert names == {"config.json", "metadata.json", "model.weights.h5"}
    with pytest.raises(ModelError, match="a model but no tokenizer"):
        kt.open_model(copied)
    (copied / "notes.txt").write_text("text")
    with pytest.raises(ModelError, match=r"contains notes.txt, which is not part of"):
        model.save_to_preset(copied)
    other = kt.pipelines.train_tokenizer("bpe", ["a b c"], 266)
    with pytest.raises(ModelError, match="300 subwords, but the tokenizer has 266"):
        model.save_to_preset(tmp_path / "third", other)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copied"]


def test_info_and_fine_tuning_read_a_preset(preset, tiny_model):
    model, _ = tiny_model
    info = model_info(preset)
    assert (info["kind"], info["parameters"]) == ("preset", model.count_params())
    assert info["vocabulary"] == {"kind": "bpe", "size": 300, "source_size": None}
    assert info["decoding"]["beam_size"] == 3
    keys = recipe_keys(preset)
    assert keys["training.initial_model"] == str(preset)
    assert keys["tokenizer"] == {"kind": "bpe", "vocabulary_size": 300}
    assert keys["model"]["d_model"] == 24


@pytest.mark.parametrize("name", malicious.SETTINGS)
def test_settings_are_checked_as_in_keras_files(copied, name):
    change, reason = malicious.SETTINGS[name]
    config = json.loads((copied / "config.json").read_text())
    change(config)
    (copied / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError) as caught:
        kt.open_model(copied)
    assert reason in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{copied}: refused: ")


@pytest.mark.parametrize("name", malicious.ARRAYS)
def test_weights_are_checked_as_in_keras_files(copied, name):
    make, reason = malicious.ARRAYS[name]
    with h5py.File(copied / "model.weights.h5", "r+") as file:
        malicious.replace_array(file, make)
    with pytest.raises(ModelError) as caught:
        kt.open_model(copied)
    assert reason in str(caught.value) and "\n" not in str(caught.value)


# Changes of a preset, each with part of the expected error.
DAMAGE = {
    "task of another class": (
        lambda path: edit(path / "task.json", class_name="system"),
        "task.json: 'class_name' is wrong",
    ),
    "task with more settings": (
        lambda path: edit(path / "task.json", config__code="1"),
        "task.json: 'config.code' is wrong",
    ),
    "beam size 0": (
        lambda path: edit(path / "task.json", config__search__beam_size=0),
        "task.json: 'config.search.beam_size' is wrong",
    ),
    "sources of one id": (
        lambda path: edit(path / "task.json", config__max_source_length=1),
        "task.json: 'config.max_source_length' is wrong",
    ),
    "translations of 2^31 ids": (
        lambda path: edit(path / "task.json", config__search__extra_length=2**31 - 1),
        "task.json: 'config.search.extra_length' is wrong",
    ),
    "padding id that the tokenizer lacks": (
        lambda path: edit(path / "config.json", config__pad_id=2**31 - 1),
        "The tokenizer must have the padding id of the model.",
    ),
    "too few outputs for the end id": (
        lambda path: edit(path / "config.json", config__output_size=1),
        "The end id must be one of the model's outputs.",
    ),
    "task that is not JSON": (
        lambda path: (path / "task.json").write_text("{"),
        "task.json: cannot be read",
    ),
    "task nested deeply": (
        lambda path: (path / "task.json").write_text("[" * 100_000),
        "task.json: ",
    ),
    "huge task": (
        lambda path: (path / "task.json").write_bytes(b" " * (2 << 20)),
        "must have at most 1,048,576 bytes",
    ),
    "huge settings": (
        lambda path: (path / "config.json").write_bytes(b" " * (2 << 20)),
        "must have at most 1,048,576 bytes",
    ),
    "unknown activation": (
        lambda path: edit(path / "config.json", config__activation="nope"),
        "cannot be loaded",
    ),
    "another tokenizer": (
        lambda path: edit(path / "tokenizer.json", config__fingerprint="0" * 64),
        "does not match the fingerprint in tokenizer.json",
    ),
    "another kind": (
        lambda path: edit(path / "tokenizer.json", config__kind="word_piece"),
        "does not match the kind in tokenizer.json",
    ),
    "another vocabulary size": (
        lambda path: edit(path / "tokenizer.json", config__vocabulary_size=301),
        "does not match the vocabulary_size in tokenizer.json",
    ),
    "no tokenizer file": (
        lambda path: (path / "assets" / "tokenizer" / "tokenizer.model").unlink(),
        "must contain a tokenizer",
    ),
    "weights that are text": (
        lambda path: (path / "model.weights.h5").write_text("weights"),
        "cannot be loaded",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_preset_gives_a_one_line_error(copied, name):
    damage, message = DAMAGE[name]
    damage(copied)
    with pytest.raises(UserError) as caught:
        kt.open_model(copied)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert str(copied) in str(caught.value)


def test_existing_path_precedes_a_packaged_name(preset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    packaged = tmp_path / "package" / "mine"
    shutil.copytree(preset, packaged)
    names = "keras_transformer.saving.names.PRETRAINED"
    monkeypatch.setattr(names, tmp_path / "package")
    assert packaged_models() == {"mine": packaged}
    assert kt.open_model("mine").path == packaged
    shutil.copytree(preset, tmp_path / "mine")
    assert str(kt.open_model("mine").path) == "mine"
