"""Training from the weights and vocabulary of another model."""

import itertools
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import pipelines
from keras_transformer.errors import ModelError
from keras_transformer.errors import RunError
from keras_transformer.experiments.average import average_run
from keras_transformer.experiments.corpora import load_pairs
from keras_transformer.experiments.train import train
from keras_transformer.recipes import load_recipe
from keras_transformer.saving.load import recipe_keys

SETTINGS = [
    "data.size=600",
    "data.held_out=11",
    "training.validation_bleu=false",
    "training.batch_tokens=170",
    "training.checkpoint_steps=3",
    "training.average_checkpoints=2",
]


def recipe_from(path, *overrides):
    return load_recipe("phrases", [*SETTINGS, *overrides], recipe_keys(path))


def weights(path):
    return keras.saving.load_model(path, compile=False).get_weights()


@pytest.fixture(scope="module")
def first(phrases_run, tmp_path_factory):
    """A run on English and German."""
    folder = tmp_path_factory.mktemp("first") / "run"
    return shutil.copytree(phrases_run[0], folder)


NEW = ("data.target_locale=nl", "training.steps=4", "training.seed=4")


@pytest.fixture(scope="module")
def train_from(run_command):
    """Function that runs `train --from PATH --output FOLDER` on English and Dutch."""
    settings = [word for one in (*SETTINGS, *NEW) for word in ("--set", one)]

    def train_from(path, folder):
        command = ("train", "phrases", *settings, "--output", folder, "--from", path)
        return run_command(*command)

    return train_from


@pytest.fixture(scope="module")
def command(first, train_from, tmp_path_factory):
    """Folder of a run that starts from the first one, and the command's result."""
    folder = tmp_path_factory.mktemp("second") / "run"
    return folder, train_from(first, folder)


@pytest.fixture(scope="module")
def second(command):
    folder, result = command
    assert result.exit_code == 0, result.stderr
    return folder


def test_fine_tuning_starts_from_the_averaged_weights(first, tmp_path):
    # A tiny learning rate keeps the weights almost unchanged.
    recipe = recipe_from(
        first, *NEW, "training.schedule=paper", "training.learning_rate=null"
    )
    recipe.training.learning_rate_scale = 1e-12
    train(recipe, tmp_path, progress=False)
    expected = weights(first / "model.keras")
    for mine, one in zip(weights(tmp_path / "model.keras"), expected, strict=True):
        np.testing.assert_allclose(mine, one, atol=1e-7)
    path, _ = average_run(first, last=1, output=tmp_path / "last.keras")
    last = weights(path)
    assert any(np.abs(a - b).max() > 1e-5 for a, b in zip(last, expected, strict=True))


def test_fine_tuning_keeps_the_vocabulary(first, second):
    files = [run / "tokenizer" / "tokenizer.model" for run in (first, second)]
    assert files[0].read_bytes() == files[1].read_bytes()
    tokenizer = pipelines.load_tokenizer(second / "tokenizer")
    corpus = pipelines.EncodedCorpus.load(second / "cache" / "train")
    recipe = load_recipe(second / "config.yaml")
    pairs = itertools.islice(load_pairs(recipe)["train"], 3)
    for number, (_, target) in enumerate(pairs):
        (ids,) = tokenizer.tokenize([target]).to_list()
        assert corpus.pair(number)[1].tolist() == [*ids, tokenizer.end_id]


def test_fine_tuning_resets_optimizer_and_steps(second):
    names = sorted(p.name for p in (second / "checkpoints").glob("ckpt-*.index"))
    assert names == ["ckpt-3.index", "ckpt-4.index"]
    stored = tf.train.load_checkpoint(str(second / "checkpoints" / "ckpt-4"))
    # The first variable of a Keras optimizer is its step count.
    assert stored.get_tensor("optimizer/0/.ATTRIBUTES/VARIABLE_VALUE") == 4


@pytest.mark.slow
def test_fine_tuning_resumes_without_the_first_model(first, second, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(second, again)
    recipe = recipe_from(first, *NEW, "training.steps=6")
    recipe.training.initial_model = str(first)
    whole = tmp_path / "whole"
    train(recipe, whole, progress=False)
    hidden = first.with_name("hidden")
    first.rename(hidden)
    try:
        train(recipe, again, progress=False)
    finally:
        hidden.rename(first)
    one, other = (weights(average_run(path, last=1)[0]) for path in (again, whole))
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)


def test_fine_tuning_accepts_a_file_without_a_recipe(first, tmp_path):
    shutil.copy(first / "model.keras", tmp_path)
    shutil.copy(first / "tokenizer" / "tokenizer.model", tmp_path)
    keys = recipe_keys(tmp_path / "model.keras")
    assert keys["tokenizer"] == {"kind": "bpe", "vocabulary_size": 380}
    recipe = recipe_from(tmp_path / "model.keras", *NEW)
    of_run = recipe_from(first, *NEW)
    assert recipe.model.preset == "base"
    assert recipe.model.model_dump() | {"preset": "tiny"} == of_run.model.model_dump()
    output = tmp_path / "run"
    assert train(recipe, output, progress=False)["steps"] == 4


def test_fine_tuning_accepts_only_checkpoints_and_another_dropout(first, tmp_path):
    """Settings that do not affect the shapes of weights may differ."""
    unfinished = tmp_path / "unfinished"
    shutil.copytree(first, unfinished)
    (unfinished / "model.keras").unlink()
    changes = ("model.dropout=0.47", "training.steps=1")
    run = tmp_path / "run"
    train(recipe_from(unfinished, *NEW, *changes), run, progress=False)
    stored = keras.saving.load_model(run / "model.keras", compile=False)
    assert stored.dropout == 0.47


def test_fine_tuning_rejects_another_shape_or_vocabulary(first, tmp_path):
    wrong = ["model.d_ff=30", "model.normalization=post", "tokenizer.vocabulary_size=9"]
    recipe = recipe_from(first, *NEW, *wrong)
    with pytest.raises(ModelError) as caught:
        train(recipe, tmp_path, progress=False)
    assert str(caught.value) == (
        f"{first / 'model.keras'}: model does not match the recipe: "
        "model.d_ff is 24 in the model but 30 in the recipe; "
        "model.normalization is pre in the model but post in the recipe; "
        "tokenizer.vocabulary_size is 380 in the model but 9 in the recipe"
    )
    assert not (tmp_path / "model.keras").exists()


def test_train_does_not_overwrite_a_finished_model(first, tmp_path):
    """A folder with a model but no checkpoints is a result to keep."""
    shutil.copy(first / "model.keras", tmp_path)
    shutil.copytree(first / "tokenizer", tmp_path / "tokenizer")
    shutil.copy(first / "config.yaml", tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.glob("*.*")}
    with pytest.raises(
        RunError, match=r"model\.keras: the checkpoints of this model are missing"
    ) as error:
        train(recipe_from(first, *NEW), tmp_path, progress=False)
    assert f"--from {tmp_path}" in str(error.value)
    assert {path: path.read_bytes() for path in before} == before
    recipe = recipe_from(first, *NEW, "training.steps=1")
    assert train(recipe, tmp_path, progress=False, restart=True)["steps"] == 1


def test_train_accepts_from(first, command, train_from, tmp_path):
    run, result = command
    assert result.exit_code == 0, result.stderr
    assert f"using the weights of {first / 'model.keras'}\n" in result.stderr
    assert f"initial model: {first}\n" in result.stdout
    recipe = load_recipe(run / "config.yaml")
    assert recipe.training.initial_model == str(first)
    assert (recipe.model.d_ff, recipe.tokenizer.vocabulary_size) == (24, 380)
    mistakes = {
        tmp_path / "nowhere": "nowhere: no such file or folder",
        tmp_path: "no model",
        run / "config.yaml": "neither a .keras file nor a folder",
    }
    for path, message in mistakes.items():
        result = train_from(path, tmp_path / "run")
        assert result.exit_code == 2
        assert message in result.stderr and result.stderr.count("\n") == 1


def test_fine_tuning_rejects_other_files(first, tmp_path):
    (tmp_path / "model.keras").write_bytes(b"no archive")
    with pytest.raises(ModelError, match=r"model\.keras: cannot be loaded"):
        recipe_keys(tmp_path)
    other = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    other.save(tmp_path / "model.keras")
    with pytest.raises(ModelError, match="Received: 'Sequential'"):
        recipe_keys(tmp_path)
    shutil.copy(first / "model.keras", tmp_path)
    with pytest.raises(ModelError, match="no tokenizer here"):
        recipe_keys(tmp_path)
