"""Fine-tuning: training from the weights and vocabulary of another model."""

import itertools
import json
import shutil

import keras
import numpy as np
import pytest
from commands import error_of, run_command

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


# Settings that the fine-tuned runs change. They translate to Dutch instead of German. A
# tiny learning rate keeps the weights almost unchanged.
NEW = (
    *("data.target_locale=nl", "training.steps=4", "training.seed=4"),
    *("training.schedule=noam", "training.learning_rate=null"),
    *("training.learning_rate_scale=1e-12", "model.dropout=0.47", "model.start=zeros"),
)


@pytest.fixture(scope="module")
def train_from():
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
    result = train_from(initial_run, folder)
    assert result.exit_code == 0, result.stderr
    return folder, result


def test_fine_tuning_starts_from_the_averaged_weights(
    initial_run, fine_tuning, tmp_path
):
    """Settings may differ that do not affect the shapes of weights."""
    run, _ = fine_tuning
    expected = weights(initial_run / "model.keras")
    for mine, one in zip(weights(run / "model.keras"), expected, strict=True):
        np.testing.assert_allclose(mine, one, atol=1e-7)
    stored = keras.saving.load_model(run / "model.keras", compile=False)
    assert stored.dropout == 0.47
    start = stored.token_embedding(np.array([[2]]))
    assert not keras.ops.convert_to_numpy(start).any()
    # The optimizer's step count starts anew.
    with np.load(run / "checkpoints" / "ckpt-4.npz") as checkpoint:
        assert checkpoint["optimizer/iteration"] == 4
    # The averaged weights differ from those of the last checkpoint.
    path, _ = average_run(initial_run, last=1, output=tmp_path / "last.keras")
    last = weights(path)
    assert any(np.abs(a - b).max() > 1e-5 for a, b in zip(last, expected, strict=True))


def test_initial_model_is_validated_first(fine_tuning):
    run, _ = fine_tuning
    lines = (run / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    first, *others = [row for row in rows if row["split"] in ("validation", "final")]
    assert (first["step"], first["is_best"]) == (0, True)
    for row in others:  # the weights hardly change
        assert row["perplexity"] == pytest.approx(first["perplexity"], rel=1e-4)


def test_fine_tuning_keeps_the_vocabulary(initial_run, fine_tuning):
    fine_tuned_run, _ = fine_tuning
    files = [
        run / "tokenizer" / "tokenizer.model" for run in (initial_run, fine_tuned_run)
    ]
    assert files[0].read_bytes() == files[1].read_bytes()
    tokenizer = pipelines.load_tokenizer(fine_tuned_run / "tokenizer")
    corpus = pipelines.EncodedCorpus.load(fine_tuned_run / "cache" / "train")
    recipe = load_recipe(fine_tuned_run / "config.yaml")
    pairs = itertools.islice(load_pairs(recipe.data)["train"], 3)
    for number, (_, target) in enumerate(pairs):
        (ids,) = tokenizer.tokenize([target]).to_list()
        assert corpus.pair(number)[1].tolist() == [*ids, tokenizer.end_id]


@pytest.mark.slow
def test_fine_tuning_resumes_without_the_first_model(initial_run, tmp_path):
    recipes = {
        steps: recipe_from(initial_run, *NEW[:1], f"training.steps={steps}")
        for steps in (4, 6)
    }
    for recipe in recipes.values():
        recipe.training.initial_model = str(initial_run)
    again, whole = tmp_path / "again", tmp_path / "whole"
    train(recipes[4], again, progress=False)
    train(recipes[6], whole, progress=False)
    hidden = initial_run.with_name("hidden")
    initial_run.rename(hidden)
    try:
        train(recipes[6], again, progress=False)
    finally:
        hidden.rename(initial_run)
    one, other = (weights(average_run(path, last=1)[0]) for path in (again, whole))
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)


def test_recipe_keys_come_from_a_file_without_a_recipe(initial_run, tmp_path):
    shutil.copy(initial_run / "tokenizer" / "tokenizer.model", tmp_path)
    file = shutil.copy(initial_run / "model.keras", tmp_path)
    keys = recipe_keys(file)
    assert keys["tokenizer"] == {"kind": "bpe", "vocabulary_size": 380}
    recipe, of_run = (recipe_from(path, *NEW) for path in (file, initial_run))
    # The file gives each size but no name of sizes, so the recipe has the default one.
    assert recipe.model.size == "base"
    assert recipe.model.model_dump() | {"size": "tiny"} == of_run.model.model_dump()


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


def test_train_does_not_overwrite_a_model_without_checkpoints(initial_run, tmp_path):
    for name in ("model.keras", "config.yaml"):
        shutil.copy(initial_run / name, tmp_path)
    shutil.copytree(initial_run / "tokenizer", tmp_path / "tokenizer")
    before = {path: path.read_bytes() for path in tmp_path.glob("*.*")}
    with pytest.raises(
        RunError, match=r"model\.keras: the checkpoints of this model are missing"
    ) as error:
        train(recipe_from(initial_run, *NEW), tmp_path, progress=False)
    assert f"set training.initial_model to {tmp_path}" in str(error.value)
    assert {path: path.read_bytes() for path in before} == before


def test_train_from_takes_settings_of_the_initial_model(
    initial_run, fine_tuning, train_from, tmp_path
):
    run, result = fine_tuning
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
        assert message in error_of(train_from(path, tmp_path / "run"))


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
