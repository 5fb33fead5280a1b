"""Invalid steps are skipped and reported, and too many of them end the training.

`training.step_check` defines invalid steps. `fault_table.py` explains the marker
`fault`.
"""

import contextlib
import functools
import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_samples import (
    VOCABULARY,
    ResettableModel,
    batch,
    paper_adam,
    tiny_transformer,
    weights_of,
)

from keras_transformer import training
from keras_transformer.errors import TrainingFault
from keras_transformer.saving.checkpoints import average_checkpoints, checkpoint_paths

# Source id that makes the step of `FaultyModel` invalid.
MARK = VOCABULARY - 1
BAD_STEPS = (3, 6)
STEPS = 8
REASON = {
    "loss": "the loss is not finite",
    "gradient": "the gradient is not finite",
    "tokens": "no target token with a weight above 0",
}


class FaultyModel(training.TrainingModel):
    """Computes an infinite loss or gradient for sources that contain `MARK`."""

    kind = "loss"

    def _sums(self, inputs, labels, training):
        sums = super()._sums(inputs, labels, training)
        if self.kind == "loss":
            sums[0] += self._poison(inputs)
        return sums

    def _gradients(self, inputs, labels, scale):
        gradients, sums = super()._gradients(inputs, labels, scale)
        if self.kind == "gradient":
            gradients[3] += self._poison(inputs)
        return gradients, sums

    def _poison(self, inputs):
        marked = tf.reduce_any(tf.equal(inputs["source_ids"], MARK))
        return tf.where(marked, float("inf"), 0.0)


def faulty_model(kind, parts=1, optimizer=None, jit_compile=False, **changes):
    model = FaultyModel(tiny_transformer(**changes), 0.1, parts)
    model.kind = kind
    model.compile(optimizer or paper_adam(), jit_compile=jit_compile)
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    return model


def batches(steps, kind=None, bad=BAD_STEPS):
    """Returns the batches of `steps`, counted from 1. Those in `bad` are invalid.

    If `kind` is "tokens", their labels are all padding. Otherwise they contain `MARK`.
    """
    found = []
    for step in steps:
        inputs, labels = batch(step)
        inputs["source_ids"][inputs["source_ids"] == MARK] = 4
        if step in bad:
            if kind == "tokens":
                labels = np.zeros_like(labels)
            else:
                inputs["source_ids"][0, 0] = MARK
        found.append((inputs, labels))
    stacked = tf.nest.map_structure(lambda *arrays: np.stack(arrays), *found)
    return tf.data.Dataset.from_tensor_slices(stacked)


@functools.cache
def resettable_model(kind, **options):
    return ResettableModel(faulty_model(kind, **options))


@functools.cache
def good_run(kind, **options):
    """Trains without the batches of `BAD_STEPS`; returns weights, slots and metrics."""
    good = [step for step in range(1, STEPS + 1) if step not in BAD_STEPS]
    model = resettable_model(kind, **options).reset()
    history = model.fit(batches(good), shuffle=False, verbose=0).history
    slots = [np.array(variable) for variable in model.optimizer.variables]
    return weights_of(model), slots, history


@pytest.mark.fault(
    "F10",
    "no update; step reported; weights, slots and metrics as without the batch",
)
@pytest.mark.fault("X04", "no update; step reported")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("loss", {}),
        ("gradient", {}),
        ("tokens", {}),
        pytest.param("loss", {"parts": 3}, marks=pytest.mark.slow),
        pytest.param("gradient", {"jit_compile": True}, marks=pytest.mark.slow),
    ],
)
def test_invalid_step_changes_nothing(tmp_path, kind, options):
    """Weights, Adam's slots and metrics match a run without the invalid batches."""
    every = range(1, STEPS + 1)
    poison = "loss" if kind == "tokens" else kind
    # Without `MARK`, all kinds train equally. This choice reuses traced models.
    weights, slots, history = good_run(poison if options else "loss", **options)
    model = resettable_model(poison, **options).reset()
    trainer = training.Trainer(model, tmp_path)
    trainer.fit(
        batches(every, kind), STEPS, log_steps=STEPS, bar=False, max_consecutive_skips=1
    )
    assert int(model.optimizer.iterations) == STEPS - len(BAD_STEPS)
    for weight, expected in zip(weights_of(model), weights, strict=True):
        np.testing.assert_array_equal(weight, expected)
    for variable, expected in zip(model.optimizer.variables, slots, strict=True):
        np.testing.assert_array_equal(variable, expected)
    rows = [
        json.loads(line)
        for line in (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()
    ]
    assert [(row["split"], row["step"]) for row in rows] == [
        ("skipped", 3),
        ("skipped", 6),
        ("train", STEPS),
    ]
    assert {row["reason"] for row in rows[:2]} == {REASON[kind]}
    for name in ("loss", "perplexity", "accuracy"):
        assert rows[2][name] == pytest.approx(history[name][0], abs=2e-6)
    assert trainer.progress.skipped == 2
    assert trainer.progress.step == STEPS


@pytest.mark.fault(
    "F10",
    "`on_nonfinite: stop`: one line with step and lines, no checkpoint of the step",
)
def test_training_stops_at_first_invalid_step(tmp_path, caplog):
    model = resettable_model("loss").reset()
    trainer = training.Trainer(model, tmp_path)
    with pytest.raises(TrainingFault) as raised:
        trainer.fit(
            batches(range(1, STEPS + 1), "loss"),
            STEPS,
            checkpoint_steps=2,
            bar=False,
            locate_batch=lambda step: [f"a.en:{10 * step + n}" for n in range(5)],
        )
    reason = (
        "the loss is not finite. Pairs in its batch: a.en:30, a.en:31, "
        "a.en:32 and 2 more"
    )
    assert str(raised.value).startswith(f"step 3: {reason}. Training stopped")
    row = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert row["batch"] == [f"a.en:{n}" for n in range(30, 35)]
    # The next start resumes before the invalid batch and may skip one step.
    assert len(checkpoint_paths(tmp_path / "checkpoints")) == 1
    again = training.Trainer(resettable_model("loss").reset(), tmp_path)
    assert again.restore() == 2
    again.fit(
        batches(range(3, STEPS + 1), "loss"), STEPS, bar=False, max_consecutive_skips=1
    )
    assert again.progress.skipped == 2
    assert "step 3: the loss is not finite" in caplog.text


@pytest.mark.parametrize(("kind", "stops"), [("gradient", True), ("tokens", False)])
def test_only_nonfinite_steps_can_be_forbidden(tmp_path, kind, stops):
    """`max_gradient_norm` also skips steps, with `on_nonfinite: stop` as well."""
    model = resettable_model("gradient").reset()
    trainer = training.Trainer(model, tmp_path, skip_nonfinite=False)
    expected = contextlib.nullcontext()
    if stops:
        expected = pytest.raises(TrainingFault, match="step 3: the gradient is not")
    with expected:
        trainer.fit(
            batches(range(1, STEPS + 1), kind),
            STEPS,
            bar=False,
            max_consecutive_skips=1,
        )
    assert trainer.progress.step == (3 if stops else STEPS)


def test_log_of_skipped_steps_stays_small(tmp_path):
    """Every start reads the log, whose size is limited."""
    model = resettable_model("loss").reset()
    places = [f"a.en:{number}" for number in range(1000)]
    training.Trainer(model, tmp_path).fit(
        batches(range(1, STEPS + 1), "loss"),
        STEPS,
        bar=False,
        max_consecutive_skips=1,
        locate_batch=lambda step: places,
    )
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["batch"] for row in rows[:2]] == [places[:100]] * 2


@pytest.mark.fault(
    "F10",
    "training stops after too many invalid steps in a row; all checkpoints are finite",
)
@pytest.mark.parametrize(("bad", "stops_at"), [((2, 3, 5, 6), None), ((4, 5, 6), 6)])
def test_training_stops_after_consecutive_invalid_steps(tmp_path, bad, stops_at):
    trainer = training.Trainer(resettable_model("gradient").reset(), tmp_path)
    steps = range(1, STEPS + 1)

    def fit():
        trainer.fit(
            batches(steps, "gradient", bad),
            STEPS,
            checkpoint_steps=1,
            bar=False,
            max_consecutive_skips=2,
        )

    if stops_at is None:
        fit()
        assert (trainer.progress.step, trainer.progress.skipped) == (STEPS, len(bad))
        return
    with pytest.raises(TrainingFault, match=r"after 3 invalid step\(s\) in a row"):
        fit()
    assert trainer.progress.step == stops_at
    # No skipped step has replaced a checkpoint, and all weights are finite.
    assert trainer.restore() == bad[0] - 1
    names = [
        path.rpartition("-")[2] for path in checkpoint_paths(tmp_path / "checkpoints")
    ]
    assert names == ["1", "2", "3"]
    assert all(np.all(np.isfinite(weight)) for weight in weights_of(trainer.model))


def test_skipped_steps_at_the_end_keep_regular_checkpoints(tmp_path):
    """Steps 6 to 8 are skipped, so the checkpoint of step 8 is not a regular one."""
    trainer = training.Trainer(resettable_model("loss").reset(), tmp_path, keep=2)
    trainer.fit(
        batches(range(1, 9), "loss", (6, 7, 8)),
        STEPS,
        checkpoint_steps=2,
        bar=False,
        max_consecutive_skips=3,
    )
    folder = tmp_path / "checkpoints"
    steps = [path.rpartition("-")[2] for path in checkpoint_paths(folder)]
    assert steps == ["2", "4", str(STEPS)]
    averaged = average_checkpoints(tiny_transformer(), folder, last=2)
    assert [path.rpartition("-")[2] for path in averaged] == ["2", "4"]
    model = resettable_model("loss").reset()
    assert training.Trainer(model, tmp_path).restore() == STEPS


@pytest.mark.fault("F11", "at a loss scale below 1e-4, the step is invalid")
def test_float16_overflow_at_small_scale_is_a_fault():
    """Keras halves the loss scale after each overflow, which is not a fault.

    If the scale is below 1e-4, the gradient itself must be infinite, which is a fault.
    """
    optimizer = keras.optimizers.LossScaleOptimizer(paper_adam(), initial_scale=1e-3)
    model = faulty_model("gradient", optimizer=optimizer, dtype="mixed_float16")
    bad_steps = range(1, 6)
    faults = []
    for step in bad_steps:
        model.fit(batches([step], "gradient", bad_steps), shuffle=False, verbose=0)
        faults.append(int(model.last_fault))
    # The loss scales are 1e-3, 5e-4, 2.5e-4, 1.25e-4 and 6e-5. 3 is `GRADIENT`.
    assert faults[:4] == [0] * 4
    assert faults[4] == 3
    assert float(optimizer.dynamic_scale) == pytest.approx(1e-3 / 32)
    assert int(optimizer.iterations) == 0


def test_skipped_steps_leave_the_loss_scale_unchanged():
    """Only an overflow lowers the scale. Other faults say nothing about float16."""
    transformer = tiny_transformer(dtype="mixed_float16")
    model = training.TrainingModel(transformer, 0.1, max_gradient_norm=1e-6)
    model.compile(keras.optimizers.LossScaleOptimizer(paper_adam(), 64.0))
    before = weights_of(transformer)
    model.fit(batches([1, 2, 3]), shuffle=False, verbose=0)
    assert int(model.last_fault) == 4  # `EXPLOSION`
    assert float(model.optimizer.dynamic_scale) == 64.0
    for weight, expected in zip(weights_of(transformer), before, strict=True):
        np.testing.assert_array_equal(weight, expected)


@pytest.mark.fault(
    "X03",
    "above `max_gradient_norm`: step reported, no update; weights match a "
    "run without the step",
)
@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("mixed_float16", marks=pytest.mark.slow)]
)
def test_exploding_gradient_updates_nothing(tmp_path, dtype):
    """The gradient of the third batch is 1,000 times too large.

    With a limit, the weights match a run without this batch.
    """

    class Exploding(training.TrainingModel):
        def _gradients(self, inputs, labels, scale):
            marked = tf.reduce_any(tf.equal(inputs["source_ids"], MARK))
            return super()._gradients(
                inputs, labels, tf.where(marked, 1e3, 1.0) * scale
            )

    def exploding(limit):
        transformer = tiny_transformer(dtype=dtype)
        model = Exploding(transformer, 0.1, max_gradient_norm=limit)
        optimizer = keras.optimizers.SGD(0.01)
        if dtype == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, 8.0)
        model.compile(optimizer)
        model.build({"source_ids": (None, None), "target_ids": (None, None)})
        return ResettableModel(model)

    def trained(resettable, name, steps, bad=()):
        trainer = training.Trainer(resettable.reset(), tmp_path / name)
        trainer.fit(
            batches(steps, bad=bad), len(steps), bar=False, max_consecutive_skips=1
        )
        return trainer, weights_of(trainer.model)

    trainer, found = trained(exploding(50.0), "limited", (1, 2, 3, 4), (3,))
    unlimited = exploding(None)
    _, expected = trained(unlimited, "without", (1, 2, 4))
    assert trainer.progress.skipped == 1
    rows = [
        json.loads(line)
        for line in (trainer.folder / "metrics.jsonl").read_text("utf-8").splitlines()
    ]
    assert [(row["split"], row["step"], row["reason"]) for row in rows] == [
        (
            "skipped",
            3,
            "the gradient's norm exceeds max_gradient_norm",
        )
    ]
    for weight, value in zip(found, expected, strict=True):
        np.testing.assert_allclose(weight, value, atol=1e-6)
    # Without a limit, the step changes the weights a lot.
    _, free = trained(unlimited, "unlimited", (1, 2, 3, 4), (3,))
    moved = max(
        np.max(np.abs(weight - value))
        for weight, value in zip(free, expected, strict=True)
    )
    assert moved > 0.1


def test_global_clipnorm_scales_whole_gradient():
    """SGD's update is the learning rate, 0.5, times the gradient."""

    def update(global_clipnorm, parts=1):
        transformer = tiny_transformer()
        before = weights_of(transformer)
        model = training.TrainingModel(transformer, 0.1, parts, global_clipnorm)
        model.compile(keras.optimizers.SGD(0.5))
        model.fit(batches([1]), shuffle=False, verbose=0)
        moved = zip(before, weights_of(transformer), strict=True)
        return np.concatenate([(old - new).ravel() for old, new in moved])

    free = update(None)
    norm = np.linalg.norm(free) / 0.5
    assert 0.1 < norm < math.inf
    for parts in (1, 3):
        np.testing.assert_allclose(
            update(0.25 * norm, parts), 0.25 * free, rtol=1e-3, atol=1e-7
        )
    np.testing.assert_allclose(update(1.01 * norm), free, rtol=1e-5, atol=1e-8)
