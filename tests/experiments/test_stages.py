"""Runs with stages: text of each stage, and resume within and between them."""

import shutil

import keras
import numpy as np
import pytest
from phrases_run import small_recipe

from keras_transformer.errors import RecipeError
from keras_transformer.experiments.train import train
from keras_transformer.pipelines import EncodedCorpus
from keras_transformer.recipes import load_recipe

STAGES = (
    "training.stages=[{steps: 3, directions: both, word_dropout: 0.2}, "
    "{steps: 3, consistency: {kind: simcut, cutoff: 0.2}, warmup_steps: 2}]"
)
SETTINGS = (
    *(STAGES, "training.steps=6", "training.warmup_steps=3"),
    *("training.cooldown_steps=0", "training.checkpoint_steps=1"),
    *("training.keep_checkpoints=6", "training.average_checkpoints=1"),
    *("training.validation_bleu=false", "tokenizer.dropout=0.0"),
    "tokenizer.segmentations=1",
)


def weights(folder):
    model = keras.saving.load_model(folder / "model.keras")
    return [weight.numpy() for weight in model.weights]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stages")
    train(small_recipe(*SETTINGS), folder, progress=False)
    return folder


def test_stored_recipe_is_the_recipe(run):
    assert load_recipe(run / "config.yaml") == small_recipe(*SETTINGS)


def test_stages_of_text_files_need_no_number_of_steps():
    text = "data.train={source: a, target: b}"
    recipe = load_recipe("files", [text, "training.stages=[{steps: 2}, {steps: 3}]"])
    assert recipe.training.steps == 5


def test_each_stage_reads_its_text(run):
    forward, both = (
        EncodedCorpus.load(run / "cache" / name) for name in ("train", "train-both-0x1")
    )
    assert both.num_pairs == 2 * forward.num_pairs
    for row in (0, 5):
        source, target = forward.pair(row)
        for found, expected in (
            (both.pair(2 * row), (source, target)),
            (both.pair(2 * row + 1), (target, source)),
        ):
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(2, marks=pytest.mark.slow, id="in the first stage"),
        pytest.param(3, id="between stages"),
        pytest.param(4, marks=pytest.mark.slow, id="in the second stage"),
    ],
)
def test_resumed_stages_give_the_same_model(run, tmp_path, step):
    cut = tmp_path / "cut"
    shutil.copytree(run, cut)
    (cut / "model.keras").unlink()
    for path in (cut / "checkpoints").glob("ckpt-*"):
        if int(path.name.split(".")[0].removeprefix("ckpt-")) > step:
            path.unlink()
    train(small_recipe(*SETTINGS), cut, progress=False)
    for one, other in zip(weights(cut), weights(run), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("[{steps: 2}]", r"sum of the stages' steps.*steps=6, sum=2"),
        ("[{steps: 6, cooldown_steps: 9}]", r"training\.stages: stage 1: cooldown"),
        ("[{steps: 6, stepz: 1}]", r"training\.stages\.0\.stepz"),
        ("[{steps: 6, schedule: paper}]", r"stage 1: schedule paper computes"),
    ],
)
def test_recipes_reject_wrong_stages(stages, message):
    with pytest.raises(RecipeError, match=message):
        small_recipe(f"training.stages={stages}", "training.steps=6")
