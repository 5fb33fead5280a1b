"""Untrusted model files are refused, and their code never runs.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import inspect
import io
import json
import shutil
import time

import h5py
import keras
import malicious_files as malicious
import numpy as np
import pytest
from commands import error_of, run_command
from tiny_export import SENTENCES

import keras_transformer as kt
from keras_transformer import pipelines
from keras_transformer.arguments import count_parameters
from keras_transformer.errors import ModelError
from keras_transformer.layers.base import zero_matrices
from keras_transformer.opening import open_model
from keras_transformer.recipes.schema import MODEL_ARGUMENTS
from keras_transformer.saving.keras_file import (
    INPUT_SHAPES,
    read,
    save_model,
)
from keras_transformer.sizes import SIZES


@pytest.fixture(scope="module")
def good(tiny_model, tmp_path_factory):
    """A folder with `model.keras` and its tokenizer."""
    folder = tmp_path_factory.mktemp("good")
    model, tokenizer = tiny_model
    model.save(folder / "model.keras")
    tokenizer.save(folder)
    return folder


def h5_names(path):
    """Returns the paths of all groups and arrays in the weights of a `.keras` file."""
    names, weights = [], io.BytesIO(malicious.members(path)["model.weights.h5"])
    with h5py.File(weights) as file:
        file.visit(names.append)
    return names


def run_commands(model, output):
    """Yields the results of `translate` and `export`."""
    for arguments in (["translate", model], ["export", model, output]):
        yield run_command(*arguments, stdin="a\n")


def files_under(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*"))


def refusal(path):
    """Asserts that a file is refused quickly and without writing. Returns the error."""
    before = files_under(path.parent)
    started = time.monotonic()
    with pytest.raises(ModelError) as caught:
        open_model(path)
    assert time.monotonic() - started < 20
    assert files_under(path.parent) == before
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    assert len(message) < len(str(path)) + 300
    return message


def test_open_model_reads_a_valid_file(good, tiny_model):
    found = open_model(good / "model.keras").model
    for mine, expected in zip(found.weights, tiny_model[0].weights, strict=True):
        assert (mine.numpy() == expected.numpy()).all()


@pytest.mark.fault("F23", "rejected with the reason")
@pytest.mark.parametrize("name", malicious.ARCHIVES)
def test_altered_files_are_refused(good, tmp_path, name):
    shutil.copytree(good, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "model.keras"
    change, reason = malicious.ARCHIVES[name]
    malicious.write_archive(path, change(malicious.members(path)))
    assert reason in refusal(path)


@pytest.mark.fault("F23", "a Lambda layer's code does not run; exit code 2")
def test_code_in_a_lambda_layer_is_not_run(good, tmp_path):
    marker = tmp_path / "marker"
    shutil.copytree(good, tmp_path, dirs_exist_ok=True)
    malicious.write_lambda_model(tmp_path / "model.keras", marker)
    keras.config.enable_unsafe_deserialization()
    try:
        assert "Received: 'Sequential'" in refusal(tmp_path / "model.keras")
    finally:
        keras.backend.clear_session()  # resets the setting
    for result in run_commands(tmp_path, tmp_path / "out"):
        error = error_of(result)
        assert error.startswith(f"error: {tmp_path / 'model.keras'}: refused: ")
    assert not marker.exists()
    # Without the check, the code runs.
    read(tmp_path / "model.keras", allow_unsafe=True)
    assert marker.exists()


@pytest.mark.fault(
    "F23", "compressed weights and overlapping or too large files are rejected"
)
def test_compressed_overlapping_and_huge_files_are_refused(good, tmp_path):
    path = tmp_path / "model.keras"
    malicious.write_zip_bomb(good / "model.keras", path)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(ModelError, match=r"its members have 67,.* bytes, but the file"):
        read(path)
    malicious.write_overlapping_archive(good / "model.keras", path)
    with pytest.raises(ModelError, match="its members have"):
        read(path)
    # A sparse file of 1 TiB.
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ModelError, match=r"model\.keras: "):
        read(path)


@pytest.mark.fault("F23", "a damaged file is an error that names it")
def test_damaged_files_are_refused(good, tmp_path):
    shutil.copytree(good, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "model.keras"
    whole = path.read_bytes()
    for part in (b"", b"PK\x03\x04", whole[:1000], whole[:-30], b"x" * 5000):
        path.write_bytes(part)
        assert "cannot be loaded" in refusal(path)
    # Every member has a checksum, so changed bytes are detected anywhere.
    for place in range(0, len(whole) - 64, len(whole) // 40):
        other = bytes(255 - byte for byte in whole[place : place + 64])
        path.write_bytes(whole[:place] + other + whole[place + 64 :])
        with pytest.raises(ModelError, match=r"model\.keras: "):
            read(path)


@pytest.mark.fault("F21", "weights of another shape: an error with both sizes")
def test_weights_of_another_shape_are_refused(good, tmp_path):
    shutil.copytree(good, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "model.keras"
    content = malicious.members(path)
    config = json.loads(content["config.json"])
    config["config"]["d_ff"] = 41
    content["config.json"] = json.dumps(config).encode()
    malicious.write_archive(path, content.items())
    # One more unit adds 24 + 24 + 1 parameters to each of four feed-forward layers.
    reason = "describe 29,636 parameters, but the file contains 29,440"
    assert reason in refusal(path)


@pytest.mark.fault(
    "F21", "another tokenizer of the same size: an error with both hashes"
)
def test_another_tokenizer_of_the_same_size_is_refused(good, tiny_model, tmp_path):
    shutil.copytree(good, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "model.keras"
    mine = tiny_model[1].fingerprint()
    save_model(tiny_model[0], path, mine)
    assert open_model(path).model.vocabulary_size == 300
    other = pipelines.train_tokenizer("bpe", [s[::-1] for s in SENTENCES], 300)
    other.save(tmp_path)
    assert f"SHA-256 begins with '{mine[:12]}'" in refusal(path)
    for result in run_commands(path, tmp_path / "out"):
        error = error_of(result)
        assert other.fingerprint()[:12] in error and "changes to text.json" in error
    # A tool that writes the archive anew keeps the fingerprint.
    malicious.write_archive(path, malicious.members(path).items())
    assert f"SHA-256 begins with '{mine[:12]}'" in refusal(path)
    shutil.copy(good / "model.keras", path)
    assert open_model(path).tokenizer.fingerprint() == other.fingerprint()


def test_settings_cover_all_constructor_arguments():
    """Each argument is in the config, and is a recipe key or a known exception."""
    arguments = set(inspect.signature(kt.Transformer.__init__).parameters)
    arguments -= {"self", "kwargs"}
    not_in_recipes = {"vocabulary_size", "output_size", "pad_id"}
    assert arguments == {*MODEL_ARGUMENTS, *not_in_recipes}
    config = kt.Transformer(12, **SIZES["tiny"]).get_config()
    assert set(config) == arguments | {"name", "trainable", "dtype"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"positions": "learned", "max_length": 31, "normalization": "pre"},
        {"key_dim": 5, "value_dim": 7, "score_mode": "additive", "activation": "gelu"},
        {"positions": "relative", "max_distance": 3, "value_dim": 5},
        {"positions": "rotary", "key_dim": 4},
        {"attention_window": 3, "dtype": "mixed_bfloat16"},
        {"dtype": "bfloat16"},
    ],
)
def test_read_accepts_every_kind_of_model(tmp_path, changes):
    model = kt.Transformer(
        53, **{"num_layers": 2, "d_model": 22, "d_ff": 33, "num_heads": 2, **changes}
    )
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    model.save(tmp_path / "model.keras")
    loaded = read(tmp_path / "model.keras")
    assert loaded.get_config() == model.get_config()
    # A file with fewer parameters is refused.
    assert count_parameters(model.get_config()) == model.count_params()


def test_read_accepts_a_model_that_was_called_with_other_inputs(tmp_path):
    """Keras stores the shapes of all inputs of the first call."""
    model = kt.Transformer(53, 1, d_model=8, d_ff=8, num_heads=2)
    ids = np.array([[2, 9, 7]])
    batch = {"source_ids": ids, "target_ids": ids, "line": np.array([1])}
    logits = model({**batch, "source_factors": np.ones((1, 3), "float32")})
    model.save(tmp_path / "model.keras")
    loaded = read(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(batch), logits)


def test_read_accepts_a_compiled_model(tmp_path):
    """The moments of the optimizer are no parameters of the model."""
    model = kt.Transformer(53, 1, d_model=8, d_ff=8, num_heads=2)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(True))
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    assert any("optimizer" in name for name in h5_names(tmp_path / "model.keras"))
    loaded = read(tmp_path / "model.keras")
    for ours, stored in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, stored)


def test_file_with_more_layers_than_the_settings_is_refused(tmp_path):
    """Keras would load the layers that the model has and ignore the others."""
    content = []
    for layers in (1, 2):
        model = kt.Transformer(53, layers, d_model=8, d_ff=8, num_heads=2)
        model.build({"source_ids": (None, None), "target_ids": (None, None)})
        model.save(tmp_path / "model.keras")
        content.append(malicious.members(tmp_path / "model.keras"))
    mixed = {**content[1], "config.json": content[0]["config.json"]}
    malicious.write_archive(tmp_path / "mixed.keras", mixed.items())
    message = "has weights of 43 layers, but the model has only 22"
    with pytest.raises(ModelError, match=message):
        read(tmp_path / "mixed.keras")


def test_large_file_opens(tmp_path):
    """100 MB. Also, only models that are about to be loaded start without values."""
    model = kt.Transformer(45_000, 1, d_model=512, d_ff=512)
    model.build(INPUT_SHAPES)
    path = tmp_path / "model.keras"
    model.save(path)
    assert path.stat().st_size > 100e6
    loaded = read(path)
    for ours, stored in zip(loaded.weights, model.weights, strict=True):
        np.testing.assert_array_equal(ours, stored)
    with zero_matrices():
        assert not np.any(kt.layers.FeedForward(3)(np.ones((1, 1, 2))))
    assert np.any(kt.layers.FeedForward(30)(np.ones((1, 1, 2))))
