"""Interrupted runs that resume end in the state of an uninterrupted run.

`fault_table.py` explains the marker `fault`.
"""

import json
import os
import pathlib
import signal
import time

import numpy as np
import pytest
import tensorflow as tf
from training_samples import (
    ResettableModel,
    batch,
    log_rows,
    steps_in,
    tiny_transformer,
    weights_of,
    without_clocks,
)

from keras_transformer import training
from keras_transformer.errors import RunError
from keras_transformer.saving.checkpoints import average_checkpoints, regular_paths
from keras_transformer.saving.names import checkpoint_paths

STEPS = 9
EMPTY = 3  # step whose batch has no token, so that its update is skipped
MOMENTUM = 0.8  # of the moving average
SCORES = {4: 9.0, 8: 3.0}  # of validations, by step
SETTINGS = {
    **{"checkpoint_steps": 2, "validation_steps": 4, "metric": "perplexity"},
    **{"log_steps": 3, "patience": 5, "max_consecutive_skips": 1, "bar": False},
}


def dataset(start_step):
    batches = [batch(seed) for seed in range(STEPS)]
    batches[EMPTY - 1] = tf.nest.map_structure(np.zeros_like, batches[EMPTY - 1])
    stacked = tf.nest.map_structure(lambda *arrays: np.stack(arrays), *batches)
    return tf.data.Dataset.from_tensor_slices(stacked).repeat().skip(start_step)


class Recorder(training.TrainingModel):
    """Calls `on_step` with the norm of each step's gradient."""

    def _gradients_in_parts(self, batch, scale):
        gradients, sums = super()._gradients_in_parts(batch, scale)
        norm = tf.linalg.global_norm(gradients)
        tf.numpy_function(lambda norm: self.on_step(float(norm)), [norm], [])
        return gradients, sums


def recorder(seed, dtype="float32"):
    options = {"dropout": 0.3, "attention_dropout": 0.2, "dtype": dtype}
    transformer = tiny_transformer(seed=seed, **options)
    model = Recorder(transformer, token_dropout=0.1)
    schedule = training.NoamSchedule(12, 4, scale=0.1)
    model.compile(
        training.FusedAdam(schedule, use_ema=True, ema_momentum=MOMENTUM, epsilon=1e-9)
    )
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    return ResettableModel(model)


@pytest.fixture(scope="module")
def recorders():
    """Two models with different initial weights and seeds."""
    return [recorder(seed) for seed in (3, 8)]


class Run:
    """A run whose parts begin like new processes, each with another model."""

    def __init__(self, folder, recorders):
        self.folder = folder
        self.recorders = recorders
        self.norms = {}  # of the gradients, by step
        self.validations = []  # their steps
        self.validated = {}  # bytes of the weights in each validation
        self.resumed = []  # steps at which the parts begin
        folder.mkdir()

    def part(self, stop=None, step=None, number=signal.SIGINT, last_step=STEPS):
        """Resumes. `stop` is "step", "validation" or "checkpoint", each of a step.

        At a checkpoint, the process crashes. Elsewhere, it gets the signal `number`.
        """
        model = self.recorders[len(self.resumed) % 2].reset()
        model.num_tokens = 0
        trainer = self.trainer = training.Trainer(model, self.folder)
        first = trainer.restore()
        self.resumed.append(first)

        def stop_at(where):
            if (where, trainer.progress.step) == (stop, step):
                os.kill(os.getpid(), number)
                if where == "validation":
                    time.sleep(60)
                    pytest.fail("the signal did not interrupt the validation")

        def on_step(norm):
            if trainer.progress.step + 1 == step and stop == "step":
                os.kill(os.getpid(), number)
            done = trainer.progress.step + 1
            assert self.norms.setdefault(done, norm) == norm

        def validate():
            stop_at("validation")
            step = trainer.progress.step
            self.validations.append(step)
            self.validated[step] = [each.tobytes() for each in weights_of(model)]
            return {"perplexity": SCORES[step]}

        def save(*arguments):
            if stop == "checkpoint" and trainer.progress.step == step:
                raise OSError("crash")
            write(*arguments)

        write, trainer.checkpoints.save = trainer.checkpoints.save, save
        model.on_step = on_step
        trainer.fit(dataset(first), last_step, validate=validate, **SETTINGS)
        return trainer

    def averages(self):
        return [np.array(each) for _, each in self.trainer.moving_average.pairs()]

    def state(self):
        model = self.trainer.model
        folder = self.folder / "checkpoints"
        regular = regular_paths([*checkpoint_paths(folder).values()])
        regular = [path.name for path in regular]
        averaged = tiny_transformer()
        average_checkpoints(averaged, folder, 3)
        best = tiny_transformer()
        best.load_weights(self.folder / "best.keras")
        arrays = [
            *(*model.variables, *model.optimizer.variables),
            *(*weights_of(averaged), *weights_of(best), *self.averages()),
        ]
        return {
            "arrays": [np.asarray(each).tobytes() for each in arrays],
            "log": log_rows(self.folder),
            "progress": without_clocks(dict(self.trainer.progress)),
            "regular checkpoints": regular,
            "validated": self.validated,
            "norms": self.norms,
        }


@pytest.fixture(scope="module")
def uninterrupted(recorders, tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("run") / "uninterrupted", recorders)
    run.part()
    return run, run.state()


def _slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


# Where the parts of a run stop, by which signal if it is not Ctrl-C, and the steps at
# which the next parts resume. A signal saves a checkpoint. A crash loses the steps
# since the last one.
@pytest.mark.fault(
    "F05",
    "equal losses, gradient norms, weights, moving averages, Adam's slots, dropout "
    "seeds, log, best score, patience, and average of checkpoints",
)
@pytest.mark.fault("F07", "in validation: saved at once; the next start repeats it")
@pytest.mark.fault("F07", "finishes the step, saves, exits with 128 plus the signal")
@pytest.mark.parametrize(
    ("stops", "resumed", "validations"),
    [
        ([("step", EMPTY)], [EMPTY], [4, 8]),  # the update was skipped
        # A scheduled checkpoint and a validation are due, too.
        ([("step", 4, signal.SIGTERM)], [4], [4, 8]),
        _slow([("step", STEPS)], [STEPS], [4, 8]),
        _slow([("step", 5, signal.SIGHUP), ("step", 7)], [5, 7], [4, 8]),
        _slow([("validation", 4, signal.SIGHUP)], [4], [4, 8]),
        _slow([("validation", 8, signal.SIGTERM), ("validation", 8)], [8, 8], [4, 8]),
        ([("checkpoint", 6)], [4], [4, 8]),
        # The checkpoint of step 4 still says that its validation is due.
        ([("validation", 4), ("checkpoint", 4)], [4, 4], [4, 4, 8]),
    ],
    ids=str,
)
def test_interrupted_run_matches_an_uninterrupted_run(
    recorders, uninterrupted, tmp_path, stops, resumed, validations
):
    run = Run(tmp_path / "run", recorders)
    for where, step, *number in stops:
        errors = OSError if where == "checkpoint" else (KeyboardInterrupt, SystemExit)
        before = [*map(signal.getsignal, number)]
        with pytest.raises(errors) as error:
            run.part(where, step, *number)
        if number:
            assert error.value.code == 128 + number[0]
        assert [*map(signal.getsignal, number)] == before
    run.part()
    assert (run.resumed, run.validations) == ([0, *resumed], validations)
    assert run.state() == uninterrupted[1]


@pytest.mark.fault(
    "F05", "a finished run that resumes with more steps equals one longer run"
)
def test_extended_run_matches_a_run_of_all_steps(recorders, uninterrupted, tmp_path):
    run = Run(tmp_path / "run", recorders)
    # Training in stages also calls `fit` once per stage.
    for last_step in (5, 5, STEPS):
        run.part(last_step=last_step)
    assert run.resumed == [0, 5, 5]
    assert run.state() == uninterrupted[1]


def test_another_run_has_other_gradients(recorders, uninterrupted, tmp_path):
    run = Run(tmp_path / "run", recorders[::-1])
    run.part(last_step=2)
    assert {*run.norms.values()}.isdisjoint(uninterrupted[0].norms.values())


def test_finished_run_is_not_saved_again(recorders, tmp_path):
    run = Run(tmp_path / "run", recorders)
    run.part(last_step=2)
    newest = run.folder / "checkpoints" / "ckpt-2.npz"
    written = newest.stat().st_mtime_ns
    run.part(last_step=2).save()
    assert newest.stat().st_mtime_ns == written


def test_resumed_log_line_has_a_loss_if_later_steps_are_skipped(recorders, tmp_path):
    """Step 3 has no token, so the line of step 3 covers steps 1 and 2."""
    run = Run(tmp_path / "run", recorders)
    run.part(last_step=2)
    run.part(last_step=EMPTY)
    skipped, line = log_rows(run.folder)
    assert (skipped["split"], line["split"], line["step"]) == ("skipped", "train", 3)
    whole = Run(tmp_path / "whole", recorders)
    whole.part(last_step=EMPTY)
    assert log_rows(whole.folder) == log_rows(run.folder)
    assert line["loss"] > 0


def test_log_line_counts_the_steps_of_its_stage_only(recorders, tmp_path):
    """Stage 2 begins after step 4, so the line of step 6 has the loss of 5 and 6."""
    losses = []
    for log_steps in (1, 2):
        folder = tmp_path / str(log_steps)
        folder.mkdir()
        model = recorders[0].reset()
        model.on_step = lambda norm: None
        trainer = training.Trainer(model, folder)
        for number, last_step in ((1, 5), (2, 6)):
            trainer.begin_stage(number, 2, is_new=True)
            batches = dataset(trainer.progress.step)
            options = {"log_steps": log_steps, "max_consecutive_skips": 1, "bar": False}
            trainer.fit(batches, last_step, **options)
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        rows = [row for row in map(json.loads, lines) if row["split"] == "train"]
        losses.append({row["step"]: row["loss"] for row in rows})
    assert losses[0][6] == losses[1][6]


def test_refused_start_changes_no_file(recorders, tmp_path):
    run = Run(tmp_path / "run", recorders)
    run.part(last_step=4)
    with open(run.folder / "metrics.jsonl", "a") as file:
        file.write('{"split": "final", "step": 4, "perplexity": 3.0}\n')

    def files():
        paths = filter(pathlib.Path.is_file, run.folder.rglob("*"))
        return {path: path.read_bytes() for path in paths}

    def refuse():
        raise RunError(f"step {trainer.progress.step}")

    trainer = training.Trainer(recorders[1].reset(), run.folder, keep=1)
    before = files()
    with pytest.raises(RunError, match="step 4"):
        trainer.restore(refuse)
    assert files() == before
    # A start that continues writes the scores of the final model again.
    assert trainer.restore() == 4
    assert log_rows(run.folder)[-1]["split"] == "validation"
    assert steps_in(run.folder / "checkpoints") == [4]


def recurrence(steps):
    """Returns the averages after each step, given the weights after each step.

    The average starts as the weights after the first step. A skipped step does not
    change it.
    """
    averages = [steps[0]]
    for step, weights in enumerate(steps[1:], 2):
        averages.append(
            averages[-1]
            if step == EMPTY
            else [
                MOMENTUM * average + (1 - MOMENTUM) * weight
                for average, weight in zip(averages[-1], weights, strict=True)
            ]
        )
    return averages


@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("mixed_float16", marks=pytest.mark.slow)]
)
def test_moving_average_follows_the_recurrence(recorders, tmp_path, dtype):
    """Training uses the weights themselves, validations and models their average."""
    first = recorders[0] if dtype == "float32" else recorder(3, dtype)
    model = first.reset()
    trainer, weights = training.Trainer(model, tmp_path), []
    model.on_step = lambda norm: None
    trainer.log.write = lambda *_: weights.append(weights_of(model))
    trainer.fit(dataset(0), STEPS, **{**SETTINGS, "log_steps": 1})
    np.testing.assert_array_equal(weights[EMPTY - 1][0], weights[EMPTY - 2][0])
    expected = recurrence(weights)[-1]
    with trainer.moving_average.use_average():
        validated = weights_of(model)
    averaged, loaded = tiny_transformer(), tiny_transformer()
    average_checkpoints(averaged, tmp_path / "checkpoints", last=1)
    loaded.load_weights(trainer.save_model("average.keras"))
    for values in (validated, weights_of(averaged), weights_of(loaded)):
        for value, right in zip(values, expected, strict=True):
            np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-6)
    loaded.load_weights(trainer.save_model("weights.keras", use_average=False))
    for values in (weights_of(model), weights_of(loaded)):
        for value, right in zip(values, weights[-1], strict=True):
            np.testing.assert_array_equal(value, right)
