"""Runs with two stages: training texts, averages, costs, and resuming.

A stage is a number of consecutive training steps with settings of their own.
"""

import shutil

import keras
import numpy as np
import pytest
from phrases_run import small_recipe
from training_samples import log_rows

from keras_transformer.errors import DataError
from keras_transformer.pipelines import EncodedCorpus, steps_per_epoch
from keras_transformer.recipes import dump_recipe, load_recipe
from keras_transformer.runs.average import average_run
from keras_transformer.runs.cost import count_run_flops
from keras_transformer.runs.train import train
from keras_transformer.saving.checkpoints import checkpoint_paths, path_in_model
from keras_transformer.saving.load import load_run
from keras_transformer.training.callbacks import Progress

STAGES = (
    "training.stages=[{steps: 3, bidirectional: true, token_dropout: 0.2}, "
    "{steps: 3, consistency: {kind: simcut, cutoff: 0.2}, warmup_steps: 2}]"
)
SETTINGS = (
    *(STAGES, "training.steps=6", "training.warmup_steps=3"),
    *("training.cooldown_steps=0", "training.checkpoint_steps=1"),
    *("training.keep_checkpoints=6", "training.average_checkpoints=1"),
    *("training.validation_bleu=false", "tokenizer.bpe_dropout=0.0"),
    *("tokenizer.num_segmentations=1", "training.ema_momentum=0.6"),
)


def weights(folder):
    model = keras.saving.load_model(folder / "model.keras")
    return [weight.numpy() for weight in model.weights]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Folder of a finished run."""
    folder = tmp_path_factory.mktemp("stages")
    summary = train(small_recipe(*SETTINGS), folder, progress=False)
    # The summary reports the pairs of each stage.
    numbers = [
        EncodedCorpus.load(folder / "cache" / name).num_pairs
        for name in ("train-both-0x1", "train")
    ]
    reports = summary["train pairs"].split("; stage 2: ")
    for report, number in zip(reports, numbers, strict=True):
        assert f"{number:,} of " in report
    return folder


def test_batches_of_all_stages_are_checked_before_training(tmp_path):
    stages = "training.stages=[{steps: 1}, {steps: 1, batch_tokens: 3}]"
    recipe = small_recipe(stages, "training.steps=2", "training.warmup_steps=1")
    with pytest.raises(DataError, match="Received: batch_tokens=3, longest"):
        train(recipe, tmp_path, progress=False)
    assert not (tmp_path / "metrics.jsonl").exists()


def test_stages_override_training(tmp_path):
    recipe = small_recipe(
        "training.consistency.kind=simcut",
        *("training.steps=5", "training.learning_rate=null"),
        "training.stages=[{steps: 2, learning_rate: 0.1}, "
        "{steps: 3, learning_rate: 0.2, consistency: null}]",
    )
    dump_recipe(recipe, tmp_path / "config.yaml")
    for each in (recipe, load_recipe(tmp_path / "config.yaml")):
        first, second = (stage.settings for stage in each.stages)
        assert (first.consistency.kind, second.consistency) == ("simcut", None)
        assert (first.learning_rate, second.learning_rate) == (0.1, 0.2)


def test_direction_both_stores_each_pair_in_both_directions(run):
    # `train-both-0x1` is the cache of the first stage: both directions, BPE-dropout 0,
    # one segmentation. `train` is the cache of the second.
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
    interrupted = tmp_path / "interrupted"
    shutil.copytree(run, interrupted)
    (interrupted / "model.keras").unlink()
    for number, path in checkpoint_paths(interrupted / "checkpoints").items():
        if number > step:
            path.unlink()
    train(small_recipe(*SETTINGS), interrupted, progress=False)
    for one, other in zip(weights(interrupted), weights(run), strict=True):
        np.testing.assert_array_equal(one, other)
    assert log_rows(interrupted) == log_rows(run)


def test_model_is_the_moving_average_over_all_stages(run):
    """The average `a` starts as the weights of step 1. Then `a = 0.6 a + 0.4 w`."""
    paths = checkpoint_paths(run / "checkpoints")
    assert len(paths) == 6
    model = load_run(run)[2]
    found = keras.saving.load_model(run / "model.keras")
    for weight, average in zip(model.weights, found.weights, strict=True):
        name = f"weights/{path_in_model(weight, model)}"
        first, *later = (np.load(path)[name] for path in paths.values())
        expected = first.astype("float64")
        for value in later:
            expected = 0.6 * expected + 0.4 * value
        np.testing.assert_allclose(average.numpy(), expected, rtol=1e-5, atol=1e-7)
        assert np.abs(average.numpy() - later[-1]).max() > 1e-5


def test_average_run_reads_the_moving_average(run, tmp_path):
    path, averaged = average_run(run, last=1, output=tmp_path / "again.keras")
    assert len(averaged) == 1
    for one, other in zip(
        keras.saving.load_model(path).get_weights(), weights(run), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_log_names_the_stage_of_each_row(run):
    assert [(row["split"], row["step"], row["stage"]) for row in log_rows(run)] == [
        ("stage", 0, 1),
        ("stage", 3, 2),
        ("validation", 4, 2),
        ("final", 6, 2),
    ]
    assert log_rows(run)[-2]["best_metric"] == "perplexity"
    assert log_rows(run)[-2]["is_best"] is True


def test_cost_of_a_run_is_the_sum_over_its_stages(run):
    both, forward = (
        EncodedCorpus.load(run / "cache" / name) for name in ("train-both-0x1", "train")
    )
    staged, plain = small_recipe(*SETTINGS), small_recipe("training.steps=6")
    sizes = plain.model.constructor_arguments()

    def cost(recipe, corpora, step, skipped=0.0):
        """Cost of a run in which a fraction of the tokens was skipped."""
        vocabulary_size, tokens = recipe.tokenizer.vocabulary_size, 0.0
        for stage, corpus in zip(recipe.stages, corpora, strict=True):
            steps = max(0, min(step, stage.end) - stage.start)
            epoch = steps_per_epoch(corpus, stage.settings.batch_tokens)
            tokens += corpus.target_lengths.sum() * steps / epoch
        progress = Progress(step=step, tokens=(1 - skipped) * tokens)
        return count_run_flops(recipe, sizes, vocabulary_size, corpora, progress)

    first = cost(plain, [both], 3)
    # SimCut needs two passes per batch.
    second = 2 * cost(plain, [forward], 3)
    assert cost(staged, [both, forward], 3) == pytest.approx(first)
    assert cost(staged, [both, forward], 5) == pytest.approx(first + 2 / 3 * second)
    assert cost(staged, [both, forward], 6) == pytest.approx(first + second)
    assert cost(plain, [both], 3, skipped=0.25) == pytest.approx(0.75 * first)
