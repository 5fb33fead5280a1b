"""Saving and loading presets, also damaged ones, and saving over other files.

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
from malicious_files import ARRAYS, SETTINGS
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
    assert_same_weights(backbone, tiny_model[0])


def assert_same_weights(found, expected):
    for ours, stored in zip(found.weights, expected.weights, strict=True):
        assert ours.dtype == stored.dtype
        assert keras.ops.all(ours == stored)


def test_open_model_restores_model_tokenizer_and_search(preset, tiny_model):
    model, tokenizer = tiny_model
    opened = kt.open_model(preset)
    assert isinstance(opened.model, kt.Transformer)
    assert_same_weights(opened.model, model)
    assert opened.tokenizer.fingerprint() == tokenizer.fingerprint()
    assert (opened.search, opened.max_source_length) == (SEARCH, 33)
    assert opened.path == preset and opened.data is None


def test_from_preset_restores_weights_and_applies_changes(preset, tiny_model):
    model, _ = tiny_model
    loaded = kt.Transformer.from_preset(str(preset), dropout=0.0, name="loaded")
    assert (loaded.dropout, loaded.name, model.dropout) == (0.0, "loaded", 0.1)
    assert_same_weights(loaded, model)


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
    assert_same_weights(loaded, model)
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
    with pytest.raises(ModelError, match="a weight exceeds the range of float16, 6"):
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


def settings(change):
    def damage(path):
        config = json.loads((path / "config.json").read_text())
        change(config)
        (path / "config.json").write_text(json.dumps(config))

    return damage


def weights(make):
    def damage(path):
        with h5py.File(path / "model.weights.h5", "r+") as file:
            malicious.replace_array(file, make)

    return damage


def damaged(name, change, message):
    """Returns a change of a file, given as JSON keys, bytes or None, and the error."""

    def damage(folder):
        if isinstance(change, dict):
            edit(folder / name, **change)
        elif change is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(change)

    return damage, message


# Changes of a preset, each with part of the expected error.
DAMAGE = [
    # As in `.keras` files.
    *((settings(each), text) for each, text in SETTINGS.values()),
    *((weights(each), text) for each, text in ARRAYS.values()),
    *(
        damaged("task.json", {key: value}, f"task.json: '{key.replace('__', '.')}' is")
        for key, value in {
            "class_name": "system",
            "config__code": "1",
            "config__search__beam_size": 0,
            "config__max_source_length": 1,
            "config__search__extra_length": 2**31 - 1,
        }.items()
    ),
    damaged("config.json", {"config__pad_id": 2**31 - 1}, "must have the padding id"),
    damaged("config.json", {"config__output_size": 1}, "The end id must be one of"),
    damaged("config.json", {"config__activation": "nope"}, "cannot be loaded"),
    *(
        damaged(
            "tokenizer.json",
            {f"config__{key}": value},
            f"does not match the {key} in tokenizer.json",
        )
        for key, value in {
            "fingerprint": "0" * 64,
            "kind": "word_piece",
            "vocabulary_size": 301,
        }.items()
    ),
    damaged("task.json", b"{", "task.json: cannot be read"),
    damaged("task.json", b"[" * 100_000, "task.json: "),
    damaged("task.json", b" " * (2 << 20), "must have at most 1,048,576 bytes"),
    damaged("config.json", b" " * (2 << 20), "must have at most 1,048,576 bytes"),
    damaged("model.weights.h5", b"weights", "cannot be loaded"),
    damaged("assets/tokenizer/tokenizer.model", None, "must contain a tokenizer"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE)
def test_damaged_preset_gives_a_one_line_error(copied, damage, message):
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


def contents(folder):
    """Returns the content of each file in a folder, by path."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "path",
    [
        *("assets/notes.txt", "assets/tokenizer/source/notes.txt", "runs/config.json"),
        *("assets/other/tokenizer.model", "README.md/notes.txt"),
    ],
)
def test_save_refuses_a_preset_with_other_files(copied, tiny_model, path):
    (copied / path).parent.mkdir(exist_ok=True)
    (copied / path).write_text("mine")
    before = contents(copied)
    with pytest.raises(ModelError, match=f"contains {path}, which is not part of a"):
        tiny_model[0].save_to_preset(copied)
    assert contents(copied) == before


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
        ({"max_source_length": None}, "task.json: 'config.max_source_length' is"),
        ({"max_source_length": 1}, "task.json: 'config.max_source_length' is"),
        ({"search": kt.BeamSearch(20_000)}, "task.json: 'config.search.beam_size' is"),
        ({"search": kt.BeamSearch(patience=float("inf"))}, "'Infinity' is not finite"),
        ({"activation": own_activation}, "config.json: 'config.activation' is"),
        ({"kind": OwnTransformer}, "config.json: 'class_name' is wrong"),
    ],
)
def test_save_refuses_what_reading_refuses(copied, tiny_model, options, message):
    model, tokenizer = tiny_model
    before = contents(copied)
    if options.keys() & {"kind", "activation"}:
        kind = options.pop("kind", kt.Transformer)
        model = kind(41, 1, d_model=8, d_ff=8, num_heads=2, **options)
        tokenizer, options = None, {}
    with pytest.raises(ModelError, match=f"cannot be stored in .*{message}"):
        model.save_to_preset(copied, tokenizer, **options)
    assert contents(copied) == before


def test_save_refuses_settings_of_sampling(copied, tiny_model):
    with pytest.raises(TypeError, match="`search` must be a `BeamSearch`"):
        tiny_model[0].save_to_preset(copied, search=kt.Sampling())


@pytest.mark.parametrize("dtype", [None, "float16"])
def test_presets_keep_bfloat16(tmp_path, dtype):
    model, _ = new_tiny_model(dtype="bfloat16")
    loaded = kt.Transformer.from_preset(model.save_to_preset(tmp_path, dtype=dtype))
    assert loaded.weights[0].dtype == "bfloat16"
    assert_same_weights(loaded, model)


def test_save_replaces_an_empty_folder_and_tokenizers_of_all_kinds(
    copied, tiny_model, tmp_path
):
    model, _ = tiny_model
    (tmp_path / "empty").mkdir()
    model.save_to_preset(tmp_path / "empty")
    folder = copied / "assets" / "tokenizer"
    for name in ("source/tokenizer.model", "target/tokenizer.json", "tokenizer.marian"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    model.save_to_preset(copied)
    assert contents(copied).keys() == {
        copied / name for name in ("config.json", "metadata.json", "model.weights.h5")
    }


def test_save_keeps_the_readme_unless_given_another(copied, tiny_model):
    model, _ = tiny_model
    (copied / "README.md").write_text("mine")
    (copied / "MODEL_CARD.md").write_text("of the previous model")
    model.save_to_preset(copied)
    assert (copied / "README.md").read_text() == "mine"
    assert not (copied / "MODEL_CARD.md").exists()
    model.save_to_preset(copied, texts={"README.md": "new"})
    assert (copied / "README.md").read_text() == "new"
