"""Callbacks, with a clock that the test controls."""

import json
import math
import signal

import numpy as np
import pytest
from training_samples import (
    ResettableModel,
    dataset,
    tiny_training_model,
    tiny_transformer,
    weights_of,
)

from keras_transformer import training
from keras_transformer.training import callbacks, signals


def steps_saved(progress, clock, minutes_per_step, **settings):
    """Simulates 20 steps and returns the steps after which a checkpoint is written."""
    saved = []
    counter = callbacks.StepCounter(progress)
    periodic = callbacks.PeriodicCheckpoint(
        progress, lambda: saved.append(progress.step), **settings
    )
    counter.on_train_begin()
    for _ in range(20):
        clock.now += 60 * minutes_per_step
        counter.on_train_batch_end(0)
        periodic.on_train_batch_end(0)
    return saved


def test_periodic_checkpoint_saves_every_ten_minutes(clock):
    # With steps of 4 minutes, at least 10 minutes have passed after three steps.
    progress = callbacks.Progress()
    assert steps_saved(progress, clock, 4, minutes=10) == [3, 6, 9, 12, 15, 18]
    assert progress.seconds == 20 * 4 * 60
    # In a resumed run, the 2 steps since the checkpoint of step 18 count.
    assert steps_saved(progress, clock, 4, minutes=10)[:2] == [21, 24]


def test_periodic_checkpoint_saves_every_seven_steps(clock):
    progress = callbacks.Progress(step=5)
    assert steps_saved(progress, clock, 60, steps=7) == [7, 14, 21]


@pytest.mark.parametrize(
    ("metric", "scores", "best", "validations_since_best"),
    [
        ("bleu", [3.0, 5.0, 5.0, 4.0], (5.0, 2), 2),
        ("perplexity", [9.0, 7.0, 7.5, 6.5], (6.5, 4), 0),
        ("perplexity", [math.nan, 8.0, math.nan], (8.0, 2), 1),
        ("bleu", [math.nan, 0.0], (0.0, 2), 0),
    ],
)
def test_progress_records_best_score(metric, scores, best, validations_since_best):
    progress = callbacks.Progress()
    for score in scores:
        progress.step += 1
        progress.record_score(metric, score)
    assert (progress.best_score, progress.best_step) == best
    assert progress.validations_since_best == validations_since_best


def test_progress_prefers_lower_perplexity_of_equal_scores():
    progress = callbacks.Progress()
    scores = [(5.0, 9.0), (5.0, 8.0), (5.0, 8.5), (6.0, 20.0), (6.0, math.nan)]
    better = []
    for score, perplexity in scores:
        progress.step += 1
        better.append(progress.record_score("bleu", score, perplexity))
    assert better == [True, True, False, True, False]
    assert (progress.best_score, progress.best_perplexity) == (6.0, 20.0)
    assert (progress.best_step, progress.validations_since_best) == (4, 1)


def test_progress_forgets_scores_of_another_metric():
    progress = callbacks.Progress(step=1)
    assert progress.record_score("bleu", 30.0, 9.0)
    progress.step = 2
    assert progress.record_score("perplexity", 50.0, 50.0)
    assert (progress.best_metric, progress.best_score) == ("perplexity", 50.0)
    assert not progress.record_score("perplexity", 51.0, 51.0)


def test_periodic_checkpoint_waits_for_the_end_of_skipped_steps(clock):
    progress, saved = callbacks.Progress(), []
    periodic = callbacks.PeriodicCheckpoint(
        progress, lambda: saved.append(progress.step), steps=2
    )
    # Steps 4, 5 and 8 are skipped, so the checkpoints of 4 and 8 wait for 6 and 9.
    for progress.step in range(1, 11):
        progress.skipped_in_a_row = {4: 1, 5: 2, 8: 1}.get(progress.step, 0)
        periodic.on_train_batch_end(0)
    assert saved == [2, 6, 9, 10]
    # With `minutes`, too, a checkpoint that is due is written at the next valid step.
    counter = callbacks.StepCounter(progress)
    periodic.steps, periodic.minutes = None, 1
    counter.on_train_begin()
    for skipped in (0, 1, 2, 0, 0):
        clock.now += 30
        counter.on_train_batch_end(0)
        progress.skipped_in_a_row = skipped
        periodic.on_train_batch_end(0)
    assert saved[4:] == [14]


class ScriptedValidation:
    """Returns scores from a list and records the weights of each call."""

    def __init__(self, model, metric, scores):
        self.model = model
        self.metric = metric
        self.scores = iter(scores)
        self.weights = []

    def __call__(self):
        self.weights.append(weights_of(self.model))
        return {"other": 1.0, self.metric: next(self.scores)}


@pytest.fixture(scope="module")
def resettable():
    return ResettableModel(tiny_training_model())


@pytest.mark.parametrize(
    ("metric", "scores", "best"),
    [
        # The second score is the best. An equal score is not better.
        ("bleu", [10.0, 20.0, 15.0, 20.0, 19.0], 1),
        ("perplexity", [10.0, 7.0, 7.0, 8.0, 9.0], 1),
    ],
)
def test_validation_stops_early_across_starts(
    resettable, tmp_path, metric, scores, best
):
    """With patience 3, training stops at the 5th validation, after one restart."""
    model = resettable.reset()
    validate = ScriptedValidation(model, metric, scores)
    settings = {"validation_steps": 4, "metric": metric, "patience": 3, "bar": False}
    trainer = training.Trainer(model, tmp_path)
    trainer.fit(dataset(), 16, validate=validate, **settings)
    assert trainer.progress.best_step == 8
    assert trainer.progress.validations_since_best == 2

    again = training.Trainer(model, tmp_path)
    assert again.restore() == 16
    again.fit(dataset(16), 100, validate=validate, **settings)
    assert again.progress.step == 20
    assert again.progress.best_score == scores[best]
    assert len(validate.weights) == 5

    stored = tiny_transformer(seed=8)
    stored.load_weights(tmp_path / "best.keras")
    for weight, expected in zip(
        weights_of(stored), validate.weights[best], strict=True
    ):
        np.testing.assert_array_equal(weight, expected)
    # A third start does not train.
    third = training.Trainer(model, tmp_path)
    third.restore()
    third.fit(dataset(20), 100, validate=validate, **settings)
    assert third.progress.step == 20

    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["step"] for row in rows] == [4, 8, 12, 16, 20]
    assert [row[metric] for row in rows] == scores
    assert {row["best_metric"] for row in rows} == {metric}
    assert [row["is_best"] for row in rows] == [True, True, False, False, False]


def test_validation_time_is_not_training_time(resettable, tmp_path, clock):
    def validate():
        clock.now += 1000
        return {"bleu": 1.0}

    trainer = training.Trainer(resettable.reset(), tmp_path)
    trainer.fit(dataset(), 3, validate=validate, validation_steps=1, bar=False)
    # Only validations advance the clock.
    assert clock.now == 100 + 3 * 1000
    assert trainer.progress.seconds == 0


def test_save_on_signal_raises_after_last_step():
    """No further step sees the signal, so the context manager itself must raise."""
    saved = []
    with (
        pytest.raises(KeyboardInterrupt),
        signals.SaveOnSignal(lambda: saved.append(1)) as on_signal,
    ):
        on_signal.on_train_batch_end(0)
        signal.raise_signal(signal.SIGINT)
    assert saved == [1]


@pytest.mark.parametrize("number", signals.SaveOnSignal.SIGNALS)
def test_ignored_signals_do_not_stop_training(number):
    """`nohup` starts a process with SIGHUP ignored, and `repeat` with Ctrl-C, too."""
    previous = signal.signal(number, signal.SIG_IGN)
    try:
        with signals.SaveOnSignal(pytest.fail) as on_signal:
            signal.raise_signal(number)
            on_signal.on_train_batch_end(0)
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, previous)


def test_closing_terminal_may_send_two_hangups():
    saved = []
    with (
        pytest.raises(SystemExit) as error,
        signals.SaveOnSignal(lambda: saved.append(1)) as on_signal,
    ):
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        on_signal.on_train_batch_end(0)
    # 128 plus the number of SIGHUP, 1.
    assert (error.value.code, saved) == (129, [1])
