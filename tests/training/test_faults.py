"""Invalid steps are skipped and reported, and too many of them end the training.

`training.step_check` defines invalid steps. `fault_table.py` explains the marker
`fault`.
"""

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
    steps_in,
    tiny_transformer,
    weights_of,
)

from keras_transformer import training
from keras_transformer.errors import TrainingFaultError
from keras_transformer.saving.checkpoints import average_checkpoints

# Source ids that make the step of a `FaultyModel` invalid. A batch of the kind "tokens"
# has only padding as labels.
MARKS = {"loss": VOCABULARY - 1, "gradient": VOCABULARY - 2, "large": VOCABULARY - 3}
BAD_STEPS = (3, 6)
STEPS = 8
REASON = {
    "loss": "the loss is not finite",
    "gradient": "the gradient is not finite",
    "tokens": "no target token with a weight above 0",
    "large": "the gradient's norm exceeds skip_above_gradient_norm",
}


class FaultyModel(training.TrainingModel):
    """Computes a wrong loss or gradient for sources that contain a mark."""

    def _sums(self, batch, training):
        sums = super()._sums(batch, training)
        sums[0] += self._poison(batch, "loss", float("inf"), 0.0)
        return sums

    def _gradients(self, batch, scale):
        scale *= self._poison(batch, "large", 1e3, 1.0)
        gradients, sums = super()._gradients(batch, scale)
        gradients[3] += self._poison(batch, "gradient", float("inf"), 0.0)
        return gradients, sums

    def _poison(self, batch, kind, poison, otherwise):
        marked = tf.reduce_any(tf.equal(batch.inputs["source_ids"], MARKS[kind]))
        return tf.where(marked, poison, otherwise)


def faulty_model(parts=1, optimizer=None, dtype=None, limit=50.0, **options):
    transformer = tiny_transformer(dtype=dtype)
    model = FaultyModel(transformer, 0.1, parts, skip_above_gradient_norm=limit)
    model.compile(optimizer or paper_adam(), **options)
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    return model


def batches(steps, kind=None, bad=BAD_STEPS):
    """Returns the batches of `steps`, counted from 1. Those in `bad` are invalid."""
    found = []
    for step in steps:
        inputs, labels = batch(step)
        inputs["source_ids"][inputs["source_ids"] >= min(MARKS.values())] = 4
        if step in bad and kind == "tokens":
            labels = np.zeros_like(labels)
        elif step in bad and kind:
            inputs["source_ids"][0, 0] = MARKS[kind]
        found.append((inputs, labels))
    stacked = tf.nest.map_structure(lambda *arrays: np.stack(arrays), *found)
    return tf.data.Dataset.from_tensor_slices(stacked)


@functools.cache
def resettable_model(**options):
    return ResettableModel(faulty_model(**options))


def trainer_in(folder, **options):
    return training.Trainer(resettable_model().reset(), folder, **options)


def fit(trainer, kind="loss", bad=BAD_STEPS, first=1, **settings):
    """Trains up to `STEPS`. One step in a row may be skipped by default."""
    settings = {"bar": False, "max_consecutive_skips": 1, **settings}
    trainer.fit(batches(range(first, STEPS + 1), kind, bad), STEPS, **settings)
    return trainer


def log_of(trainer):
    lines = (trainer.folder / "metrics.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.fault(
    "F10",
    "no update; step reported; weights, slots and metrics as without the batch",
)
@pytest.mark.fault("X03", "above `skip_above_gradient_norm`: the same")
@pytest.mark.fault("X04", "no update; step reported")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {}) for kind in REASON),
        pytest.param("loss", {"parts": 3}, marks=pytest.mark.slow),
        pytest.param("gradient", {"jit_compile": True}, marks=pytest.mark.slow),
    ],
)
def test_invalid_step_changes_nothing(tmp_path, kind, options):
    """Weights, Adam's slots and metrics match a run without the invalid batches."""
    resettable = resettable_model(**options)
    good = [step for step in range(1, STEPS + 1) if step not in BAD_STEPS]
    model = resettable.reset()
    history = model.fit(batches(good), shuffle=False, verbose=0).history
    variables = [*model.transformer.variables, *model.optimizer.variables]
    expected = [np.array(variable) for variable in variables]
    trainer = training.Trainer(resettable.reset(), tmp_path)
    fit(trainer, kind, log_steps=STEPS)
    assert int(model.optimizer.iterations) == STEPS - len(BAD_STEPS)
    for variable, value in zip(variables, expected, strict=True):
        np.testing.assert_array_equal(variable, value)
    rows = log_of(trainer)
    assert [(row["split"], row["step"]) for row in rows] == [
        *(("skipped", 3), ("skipped", 6), ("train", STEPS))
    ]
    assert {row["reason"] for row in rows[:2]} == {REASON[kind]}
    for name in ("loss", "perplexity", "accuracy"):
        assert rows[2][name] == pytest.approx(history[name][0], abs=2e-6)
    assert (trainer.progress.skipped, trainer.progress.step) == (2, STEPS)


@pytest.mark.fault(
    "F10",
    "`on_nonfinite: stop`: one line with step and lines, no checkpoint of the step",
)
def test_training_stops_at_first_invalid_step(tmp_path, caplog):
    """Every start reads the log, so it lists only some of the places of a batch."""
    places = [f"a.en:{number}" for number in range(1000)]
    trainer = trainer_in(tmp_path)
    settings = {"checkpoint_steps": 2, "locate_batch": lambda step: places[step:]}
    with pytest.raises(TrainingFaultError) as raised:
        fit(trainer, max_consecutive_skips=0, **settings)
    assert str(raised.value).startswith(
        "step 3: the loss is not finite. Pairs in its batch: a.en:3, a.en:4, a.en:5 "
        "and 994 more. Training stopped"
    )
    assert [row["batch"] for row in log_of(trainer)] == [places[3:103]]
    # The next start resumes before the invalid batch and may skip one step.
    assert steps_in(tmp_path / "checkpoints") == [2]
    again = trainer_in(tmp_path)
    assert again.restore() == 2
    fit(again, first=3)
    assert again.progress.skipped == 2
    assert "step 3: the loss is not finite" in caplog.text


@pytest.mark.fault(
    "F10",
    "training stops after too many invalid steps in a row; all checkpoints are finite",
)
@pytest.mark.parametrize(
    ("kind", "bad", "allowed", "skip_nonfinite", "stops_at"),
    [
        ("gradient", (2, 3, 5, 6), 2, True, None),
        ("gradient", (4, 5, 6), 2, True, 6),
        # `skip_above_gradient_norm` skips steps with `on_nonfinite: stop`, too.
        ("gradient", BAD_STEPS, 1, False, 3),
        ("tokens", BAD_STEPS, 1, False, None),
    ],
)
def test_training_stops_after_consecutive_invalid_steps(
    tmp_path, kind, bad, allowed, skip_nonfinite, stops_at
):
    trainer = trainer_in(tmp_path, skip_nonfinite=skip_nonfinite)
    settings = {"checkpoint_steps": 1, "max_consecutive_skips": allowed}
    if stops_at is None:
        fit(trainer, kind, bad, **settings)
        assert (trainer.progress.step, trainer.progress.skipped) == (STEPS, len(bad))
        return
    skipped = stops_at - bad[0] + 1
    message = rf"after {skipped} invalid step\(s\) in a"
    with pytest.raises(TrainingFaultError, match=message):
        fit(trainer, kind, bad, **settings)
    assert trainer.progress.step == stops_at
    # No skipped step has replaced a checkpoint, and all weights are finite.
    assert trainer.restore() == bad[0] - 1
    assert steps_in(tmp_path / "checkpoints") == [*range(1, bad[0])]
    assert all(np.all(np.isfinite(weight)) for weight in weights_of(trainer.model))


def test_skipped_steps_at_the_end_keep_regular_checkpoints(tmp_path):
    """Steps 6 to 8 are skipped, so the checkpoint of step 8 is not a regular one."""
    settings = {"checkpoint_steps": 2, "max_consecutive_skips": 3}
    fit(trainer_in(tmp_path, keep=2), bad=(6, 7, 8), **settings)
    folder = tmp_path / "checkpoints"
    assert steps_in(folder) == [2, 4, STEPS]
    averaged = average_checkpoints(tiny_transformer(), folder, last=2)
    assert [path.name for path in averaged] == ["ckpt-2.npz", "ckpt-4.npz"]
    assert trainer_in(tmp_path).restore() == STEPS


@pytest.mark.fault("F11", "at a loss scale below 1e-4, the step is invalid")
def test_float16_overflow_at_small_scale_is_a_fault():
    """Keras halves the loss scale after each overflow, which is not a fault.

    If the scale is below 1e-4, the gradient itself must be infinite, which is a fault.
    """
    optimizer = keras.optimizers.LossScaleOptimizer(paper_adam(), initial_scale=1e-3)
    options = {"dtype": "mixed_float16", "run_eagerly": True}
    model = faulty_model(optimizer=optimizer, **options)
    bad_steps = range(1, 6)
    faults = []
    for step in bad_steps:
        model.fit(batches([step], "gradient", bad_steps), shuffle=False, verbose=0)
        faults.append(int(model.last_fault))
    # The loss scales are 1e-3, 5e-4, 2.5e-4, 1.25e-4 and 6e-5. 3 is `GRADIENT`.
    assert faults == [0, 0, 0, 0, 3]
    assert float(optimizer.dynamic_scale) == pytest.approx(1e-3 / 32)
    assert int(optimizer.iterations) == 0


def test_skipped_steps_leave_the_loss_scale_unchanged():
    """Only an overflow lowers the scale. Other faults say nothing about float16."""
    optimizer = keras.optimizers.LossScaleOptimizer(paper_adam(), 64.0)
    options = {"dtype": "mixed_float16", "run_eagerly": True}
    model = faulty_model(optimizer=optimizer, limit=1e-6, **options)
    before = weights_of(model)
    model.fit(batches([1, 2, 3]), shuffle=False, verbose=0)
    assert int(model.last_fault) == 4  # `EXPLOSION`
    assert float(model.optimizer.dynamic_scale) == 64.0
    for weight, expected in zip(weights_of(model), before, strict=True):
        np.testing.assert_array_equal(weight, expected)


def test_global_clipnorm_scales_whole_gradient():
    """SGD's update is the learning rate, 0.5, times the gradient."""

    def update(global_clipnorm, parts=1):
        transformer = tiny_transformer()
        before = weights_of(transformer)
        model = training.TrainingModel(transformer, 0.1, parts, global_clipnorm)
        model.compile(keras.optimizers.SGD(0.5), run_eagerly=True)
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
