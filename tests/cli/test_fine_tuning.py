"""Fine-tuning: training from the weights and vocabulary of another model."""

import itertools
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import pipelines
from keras_transformer.errors import ModelError, RunError
from keras_transformer.recipes import load_recipe
from keras_transformer.runs.average import average_run
from keras_transformer.runs.corpora import load_pairs
from keras_transformer.runs.train import train
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
def initial_run(phrases_run, tmp_path_factory):
    """Folder of a finished run on English and German phrases."""
    folder = tmp_path_factory.mktemp("initial") / "run"
    return shutil.copytree(phrases_run[0], folder)


# Settings that the fine-tuned runs change. They translate to Dutch instead of German.
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
def fine_tuning(initial_run, train_from, tmp_path_factory):
    """Folder of a run that starts from the initial one, and the command's result."""
    folder = tmp_path_factory.mktemp("fine_tuned") / "run"
    return folder, train_from(initial_run, folder)


@pytest.fixture(scope="module")
def fine_tuned_run(fine_tuning):
    """Folder of the run that starts from the initial one."""
    folder, result = fine_tuning
    assert result.exit_code == 0, result.stderr
    return folder


def test_fine_tuning_starts_from_the_averaged_weights(initial_run, tmp_path):
    # A tiny learning rate keeps the weights almost unchanged.
    changes = ("training.schedule=paper", "training.learning_rate=null")
    recipe = recipe_from(initial_run, *NEW, *changes, "training.steps=1")
    recipe.training.learning_rate_scale = 1e-12
    train(recipe, tmp_path, progress=False)
    expected = weights(initial_run / "model.keras")
    for mine, one in zip(weights(tmp_path / "model.keras"), expected, strict=True):
        np.testing.assert_allclose(mine, one, atol=1e-7)
    # The averaged weights differ from those of the last checkpoint.
    path, _ = average_run(initial_run, last=1, output=tmp_path / "last.keras")
    last = weights(path)
    assert any(np.abs(a - b).max() > 1e-5 for a, b in zip(last, expected, strict=True))


def test_fine_tuning_keeps_the_vocabulary(initial_run, fine_tuned_run):
    files = [
        run / "tokenizer" / "tokenizer.model" for run in (initial_run, fine_tuned_run)
    ]
    assert files[0].read_bytes() == files[1].read_bytes()
    tokenizer = pipelines.load_tokenizer(fine_tuned_run / "tokenizer")
    corpus = pipelines.EncodedCorpus.load(fine_tuned_run / "cache" / "train")
    recipe = load_recipe(fine_tuned_run / "config.yaml")
    pairs = itertools.islice(load_pairs(recipe)["train"], 3)
    for number, (_, target) in enumerate(pairs):
        (ids,) = tokenizer.tokenize([target]).to_list()
        assert corpus.pair(number)[1].tolist() == [*ids, tokenizer.end_id]


def test_fine_tuning_resets_optimizer_and_steps(fine_tuned_run):
    names = sorted(
        p.name for p in (fine_tuned_run / "checkpoints").glob("ckpt-*.index")
    )
    assert names == ["ckpt-3.index", "ckpt-4.index"]
    stored = tf.train.load_checkpoint(str(fine_tuned_run / "checkpoints" / "ckpt-4"))
    # The first variable of a Keras optimizer is its step count.
    assert stored.get_tensor("optimizer/0/.ATTRIBUTES/VARIABLE_VALUE") == 4


@pytest.mark.slow
def test_fine_tuning_resumes_without_the_first_model(
    initial_run, fine_tuned_run, tmp_path
):
    again = tmp_path / "again"
    shutil.copytree(fine_tuned_run, again)
    recipe = recipe_from(initial_run, *NEW, "training.steps=6")
    recipe.training.initial_model = str(initial_run)
    whole = tmp_path / "whole"
    train(recipe, whole, progress=False)
    hidden = initial_run.with_name("hidden")
    initial_run.rename(hidden)
    try:
        train(recipe, again, progress=False)
    finally:
        hidden.rename(initial_run)
    one, other = (weights(average_run(path, last=1)[0]) for path in (again, whole))
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.fixture
def file(initial_run, tmp_path):
    """Path of a model's file with its tokenizer next to it, but no recipe."""
    shutil.copy(initial_run / "tokenizer" / "tokenizer.model", tmp_path)
    return shutil.copy(initial_run / "model.keras", tmp_path)


def test_recipe_keys_come_from_a_file_without_a_recipe(initial_run, file):
    keys = recipe_keys(file)
    assert keys["tokenizer"] == {"kind": "bpe", "vocabulary_size": 380}
    recipe, of_run = (recipe_from(path, *NEW) for path in (file, initial_run))
    # The file gives all sizes but no preset, so the recipe has the default preset.
    assert recipe.model.size == "base"
    assert recipe.model.model_dump() | {"preset": "tiny"} == of_run.model.model_dump()


@pytest.mark.slow
def test_fine_tuning_starts_from_checkpoints_with_another_dropout(
    initial_run, tmp_path
):
    """Settings that do not affect the shapes of weights may differ."""
    unfinished = tmp_path / "unfinished"
    shutil.copytree(initial_run, unfinished)
    (unfinished / "model.keras").unlink()
    changes = ("model.dropout=0.47", "training.steps=1")
    run = tmp_path / "run"
    train(recipe_from(unfinished, *NEW, *changes), run, progress=False)
    stored = keras.saving.load_model(run / "model.keras", compile=False)
    assert stored.dropout == 0.47


def test_fine_tuning_changes_variations_without_weights(initial_run, tmp_path):
    changes = ("model.start=zeros", "model.position_rates=tensor2tensor")
    run = tmp_path / "run"
    recipe = recipe_from(initial_run, *NEW, *changes, "training.steps=1")
    recipe.training.learning_rate = 1e-12
    train(recipe, run, progress=False)
    stored = keras.saving.load_model(run / "model.keras", compile=False)
    assert stored.variations.position_rates == "tensor2tensor"
    start = stored.token_embedding(np.array([[2]]))
    assert not keras.ops.convert_to_numpy(start).any()
    expected = weights(initial_run / "model.keras")
    for mine, one in zip(stored.get_weights(), expected, strict=True):
        np.testing.assert_allclose(mine, one, atol=1e-7)


def test_fine_tuning_rejects_another_shape_or_vocabulary(initial_run, tmp_path):
    wrong = ["model.d_ff=30", "model.normalization=post", "tokenizer.vocabulary_size=9"]
    recipe = recipe_from(initial_run, *NEW, *wrong)
    with pytest.raises(ModelError) as caught:
        train(recipe, tmp_path, progress=False)
    assert str(caught.value) == (
        f"{initial_run / 'model.keras'}: model does not match the recipe: "
        "model.d_ff is 24 in the model but 30 in the recipe; "
        "model.normalization is pre in the model but post in the recipe; "
        "tokenizer.vocabulary_size is 380 in the model but 9 in the recipe"
    )
    assert not (tmp_path / "model.keras").exists()


@pytest.fixture
def finished(initial_run, tmp_path):
    """Folder with a model but no checkpoints, which training must not overwrite."""
    shutil.copy(initial_run / "model.keras", tmp_path)
    shutil.copytree(initial_run / "tokenizer", tmp_path / "tokenizer")
    shutil.copy(initial_run / "config.yaml", tmp_path)
    return tmp_path


def test_train_does_not_overwrite_a_finished_model(initial_run, finished):
    before = {path: path.read_bytes() for path in finished.glob("*.*")}
    with pytest.raises(
        RunError, match=r"model\.keras: the checkpoints of this model are missing"
    ) as error:
        train(recipe_from(initial_run, *NEW), finished, progress=False)
    assert f"--from {finished}" in str(error.value)
    assert {path: path.read_bytes() for path in before} == before


def test_train_from_takes_settings_of_the_initial_model(
    initial_run, fine_tuning, train_from, tmp_path
):
    run, result = fine_tuning
    assert result.exit_code == 0, result.stderr
    assert f"using the weights of {initial_run / 'model.keras'}\n" in result.stderr
    assert f"initial model: {initial_run}\n" in result.stdout
    recipe = load_recipe(run / "config.yaml")
    assert recipe.training.initial_model == str(initial_run)
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


def test_fine_tuning_rejects_other_files(initial_run, tmp_path):
    (tmp_path / "model.keras").write_bytes(b"no archive")
    with pytest.raises(ModelError, match=r"model\.keras: cannot be loaded"):
        recipe_keys(tmp_path)
    other = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    other.save(tmp_path / "model.keras")
    with pytest.raises(ModelError, match="Received: 'Sequential'"):
        recipe_keys(tmp_path)
    shutil.copy(initial_run / "model.keras", tmp_path)
    with pytest.raises(ModelError, match="must contain a tokenizer"):
        recipe_keys(tmp_path)
