"""Resumed runs match uninterrupted ones: losses, rates, gradients, validations.

`fault_table.py` explains the marker `fault`.
"""

import dataclasses
import json
import os
import signal
import time

import pytest
import tensorflow as tf
from training_samples import ResettableModel, dataset, paper_adam, tiny_transformer

from keras_transformer import training
from keras_transformer.errors import RunError
from keras_transformer.saving.checkpoints import regular_paths
from keras_transformer.saving.names import checkpoint_paths


class NormRecorder(training.TrainingModel):
    """Records the norm of each step's gradient."""

    def _gradients_in_parts(self, inputs, labels, scale):
        gradients, sums = super()._gradients_in_parts(inputs, labels, scale)
        norm = tf.linalg.global_norm(gradients)
        tf.numpy_function(self.norms.append, [norm], [])
        return gradients, sums


def recorder(seed):
    transformer = tiny_transformer(seed=seed, dropout=0.3, attention_dropout=0.2)
    model = NormRecorder(transformer, 0.1)
    model.norms = []
    model.compile(optimizer=paper_adam())
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    return ResettableModel(model)


@pytest.fixture(scope="module")
def recorders():
    """Models with different initial weights, by seed."""
    return {seed: recorder(seed) for seed in (3, 8)}


@pytest.fixture
def make_trainer(recorders):
    """Function that returns a trainer whose model is reset to its initial weights."""

    def make_trainer(folder, seed=3):
        model = recorders[seed].reset()
        model.norms.clear()
        return training.Trainer(model, folder)

    return make_trainer


def rows(folder):
    """Returns the rows of metrics.jsonl without fields that depend on time."""
    clocks = ("seconds", "tokens_per_second")
    return [
        {name: value for name, value in json.loads(line).items() if name not in clocks}
        for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    ]


def fit(trainer, steps, validate, first=0, **settings):
    """Trains up to a step, with validations of the perplexity every two steps."""
    settings = {"validation_steps": 2, "metric": "perplexity", "bar": False, **settings}
    trainer.fit(dataset(first), steps, validate=validate, **settings)


def interrupt():
    signal.raise_signal(signal.SIGINT)


def validate():
    return {"perplexity": 2.0}


@pytest.mark.fault("F05", "equal loss, rate and gradient norm of every step")
def test_resumed_steps_match_uninterrupted_run(make_trainer, tmp_path):
    uninterrupted = make_trainer(tmp_path / "uninterrupted")
    uninterrupted.fit(dataset(), 11, log_steps=1, bar=False)
    tokens = float(uninterrupted.model.token_counter.result())
    expected = [*uninterrupted.model.norms]
    interrupted = make_trainer(tmp_path / "interrupted")
    interrupted.fit(dataset(), 4, log_steps=1, bar=False)
    resumed = make_trainer(tmp_path / "interrupted", seed=8)
    assert resumed.restore() == 4
    resumed.fit(dataset(4), 11, log_steps=1, bar=False)
    assert rows(tmp_path / "interrupted") == rows(tmp_path / "uninterrupted")
    assert resumed.progress.tokens == uninterrupted.progress.tokens == tokens > 0
    assert [row["step"] for row in rows(tmp_path / "interrupted")] == list(range(1, 12))
    norms = [*interrupted.model.norms, *resumed.model.norms]
    assert norms == expected
    assert len(set(norms)) == 11


def test_resumed_log_line_includes_earlier_steps(make_trainer, tmp_path):
    """After a stop at step 4, the line of step 6 covers steps 1 to 6."""
    make_trainer(tmp_path / "uninterrupted").fit(dataset(), 6, log_steps=6, bar=False)
    make_trainer(tmp_path / "interrupted").fit(dataset(), 4, log_steps=6, bar=False)
    resumed = make_trainer(tmp_path / "interrupted", seed=8)
    resumed.restore()
    resumed.fit(dataset(4), 6, log_steps=6, bar=False)
    assert rows(tmp_path / "interrupted") == rows(tmp_path / "uninterrupted")


def test_resumed_log_line_has_a_loss_if_later_steps_are_skipped(make_trainer, tmp_path):
    """Steps 5 and 6 have no labels, so the line of step 6 covers steps 1 to 4."""
    make_trainer(tmp_path / "short").fit(dataset(), 4, log_steps=4, bar=False)
    make_trainer(tmp_path / "interrupted").fit(dataset(), 4, log_steps=6, bar=False)
    resumed = make_trainer(tmp_path / "interrupted", seed=8)
    resumed.restore()
    without_labels = dataset(4).map(lambda inputs, labels: (inputs, 0 * labels))
    options = {"log_steps": 6, "bar": False, "max_consecutive_skips": 2}
    resumed.fit(without_labels, 6, **options)
    (expected,), found = rows(tmp_path / "short"), rows(tmp_path / "interrupted")
    assert [row["split"] for row in found] == ["skipped", "skipped", "train"]
    for name in ("loss", "perplexity", "accuracy"):
        assert found[-1][name] == expected[name]


def test_log_line_counts_the_steps_of_its_stage_only(make_trainer, tmp_path):
    """Stage 2 begins after step 3, so the line of step 4 has the loss of step 4."""
    lines = []
    for log_steps in (1, 4):
        trainer = make_trainer(tmp_path / str(log_steps))
        for number, last_step in ((1, 3), (2, 4)):
            trainer.begin_stage(number, 2, is_new=True)
            done = trainer.progress.step
            trainer.fit(dataset(done), last_step, log_steps=log_steps, bar=False)
        found = rows(tmp_path / str(log_steps))
        lines.append([row for row in found if row["split"] == "train"])
    assert [row["step"] for row in lines[1]] == [4]
    assert lines[0][3:] == lines[1]


@pytest.mark.fault("F07", "in validation: saved at once; the next start repeats it")
@pytest.mark.parametrize(
    ("number", "raised"),
    [
        pytest.param(signal.SIGTERM, SystemExit, marks=pytest.mark.slow),
        (signal.SIGINT, KeyboardInterrupt),
    ],
)
def test_signal_interrupts_validation(make_trainer, tmp_path, number, raised):
    scores = {2: 3.0, 4: 2.0, 6: 2.5}
    validated = []

    def scripted(trainer):
        validated.append(trainer.progress.step)
        return {"perplexity": scores[trainer.progress.step]}

    uninterrupted = make_trainer(tmp_path / "uninterrupted")
    fit(uninterrupted, 6, lambda: scripted(uninterrupted), patience=3)
    interrupted = make_trainer(tmp_path / "interrupted")

    def validate_with_signal():
        if interrupted.progress.step == 4:
            os.kill(os.getpid(), number)
            time.sleep(60)  # the signal must interrupt this
        return scripted(interrupted)

    started = time.monotonic()
    with pytest.raises(raised) as error:
        fit(interrupted, 6, validate_with_signal, patience=3)
    assert time.monotonic() - started < 50
    # 128 plus the number of SIGTERM, 15.
    assert raised is KeyboardInterrupt or error.value.code == 143
    resumed = make_trainer(tmp_path / "interrupted", seed=8)
    assert resumed.restore() == 4
    assert resumed.progress.validation_due
    validated.clear()
    fit(resumed, 6, lambda: scripted(resumed), first=4, patience=3)
    assert validated == [4, 6]
    assert rows(tmp_path / "interrupted") == rows(tmp_path / "uninterrupted")
    reached, expected = (
        dataclasses.asdict(trainer.progress) for trainer in (resumed, uninterrupted)
    )
    for clock in ("seconds", "checkpoint_seconds"):
        del reached[clock], expected[clock]
    assert reached == expected
    assert (reached["best_step"], reached["validations_since_best"]) == (4, 1)


def test_interrupted_validation_keeps_its_scheduled_checkpoint(make_trainer, tmp_path):
    """Step 4 has a validation and a scheduled checkpoint."""
    settings = {"validation_steps": 4, "checkpoint_steps": 2}
    with pytest.raises(KeyboardInterrupt):
        fit(make_trainer(tmp_path), 6, interrupt, **settings)
    resumed = make_trainer(tmp_path, seed=8)
    fit(resumed, 6, validate, first=resumed.restore(), **settings)
    paths = regular_paths(checkpoint_paths(tmp_path / "checkpoints"))
    assert [path.rpartition("-")[2] for path in paths] == ["2", "4", "6"]


def test_repeated_validation_keeps_the_sums_of_metrics(make_trainer, tmp_path):
    """The line of step 4 counts steps 1 and 2, before the interruption, as well."""
    settings = {"checkpoint_steps": 2, "log_steps": 4}
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    with pytest.raises(KeyboardInterrupt):
        fit(make_trainer(cut), 4, interrupt, **settings)
    resumed = make_trainer(cut, seed=8)
    fit(resumed, 4, validate, first=resumed.restore(), **settings)
    fit(make_trainer(whole), 4, validate, **settings)
    lines = [
        [row["loss"] for row in rows(folder) if row["split"] == "train"]
        for folder in (cut, whole)
    ]
    assert len(lines[0]) == 1
    assert lines[0] == lines[1]


def test_validation_interrupted_at_the_last_step_is_repeated_once(
    make_trainer, tmp_path
):
    validated = []

    def record():
        validated.append(trainer.progress.step)
        return validate()

    trainer = make_trainer(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        fit(
            trainer,
            4,
            lambda: interrupt() if trainer.progress.step == 4 else record(),
            checkpoint_steps=2,
        )
    # The second start does nothing, and the third trains longer.
    for steps in (4, 4, 6):
        trainer = make_trainer(tmp_path, seed=8)
        fit(trainer, steps, record, first=trainer.restore(), checkpoint_steps=2)
    assert validated == [2, 4, 6]
    found = [row["step"] for row in rows(tmp_path) if row["split"] == "validation"]
    assert found == [2, 4, 6]
    paths = regular_paths(checkpoint_paths(tmp_path / "checkpoints"))
    assert [path.rpartition("-")[2] for path in paths] == ["2", "4", "6"]


def test_crash_after_a_repeated_validation_leaves_one_line(make_trainer, tmp_path):
    """The checkpoint of step 2 still says that its validation is due."""

    def crash(*_):
        raise OSError

    with pytest.raises(KeyboardInterrupt):
        fit(make_trainer(tmp_path), 3, interrupt)
    crashed = make_trainer(tmp_path, seed=8)
    first = crashed.restore()
    crashed.checkpoints.save = crash
    with pytest.raises(OSError, match=r"^$"):
        fit(crashed, 3, validate, first)
    resumed = make_trainer(tmp_path, seed=8)
    fit(resumed, 3, validate, first=resumed.restore())
    found = [row["step"] for row in rows(tmp_path) if row["split"] == "validation"]
    assert found == [2]


def test_refused_start_leaves_the_log(make_trainer, tmp_path):
    make_trainer(tmp_path).fit(dataset(), 2, log_steps=1, bar=False)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"split": "final", "step": 2, "bleu": 30.0}\n')
    before = (tmp_path / "metrics.jsonl").read_bytes()

    def refuse():
        raise RunError("another text")

    with pytest.raises(RunError, match="another text"):
        make_trainer(tmp_path).restore(refuse)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    # A start that continues writes the scores of the final model again.
    make_trainer(tmp_path).restore()
    assert [row["split"] for row in rows(tmp_path)] == ["train", "train"]
