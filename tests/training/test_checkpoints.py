"""Checkpoints: rotation, averages, damage, other models and resuming.

`fault_table.py` explains the marker `fault`.
"""

import contextlib
import dataclasses
import logging
import pathlib
import shutil
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_samples import (
    ResettableModel,
    dataset,
    paper_adam,
    save_checkpoints,
    steps_in,
    tiny_training_model,
    tiny_transformer,
    weights_of,
)

from keras_transformer import training
from keras_transformer.errors import CheckpointError
from keras_transformer.saving.checkpoints import average_checkpoints
from keras_transformer.training.checkpoints import Checkpoints


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Folder with checkpoints of steps 10, 20 and 30, and their weights by step."""
    folder = tmp_path_factory.mktemp("saved")
    return folder, save_checkpoints(tiny_training_model(), folder)


@pytest.fixture
def saved(written, tmp_path):
    """Same as `written`, but the folder is a copy that the test may change."""
    shutil.copytree(written[0], tmp_path, dirs_exist_ok=True)
    return tmp_path, written[1]


@pytest.fixture(scope="module")
def resettable_with_other_weights():
    """A `ResettableModel` whose initial weights differ from `written`."""
    return ResettableModel(tiny_training_model(seed=8))


@pytest.fixture
def model(resettable_with_other_weights):
    return resettable_with_other_weights.reset()


def damage(folder, step, how):
    """Damages the index or the data file of a checkpoint. `how` is in `DAMAGES`."""
    index = pathlib.Path(folder) / f"ckpt-{step}.index"
    (data,) = pathlib.Path(folder).glob(f"ckpt-{step}.data-*")
    if how == "data cut off":
        data.write_bytes(data.read_bytes()[:-100])
    elif how == "data lost":
        data.unlink()
    elif how == "a byte of data altered":
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
    elif how == "index cut off":
        index.write_bytes(index.read_bytes()[:100])
    elif how == "index empty":
        index.write_bytes(b"")


DAMAGES = [
    *("data cut off", "data lost", "a byte of data altered"),
    *("index cut off", "index empty"),
]


def assert_weights(model, expected):
    for weight, value in zip(weights_of(model), expected, strict=True):
        np.testing.assert_array_equal(weight, value)


def test_checkpoints_keep_the_last_three(model, tmp_path):
    checkpoints = Checkpoints(model, tmp_path, keep=3)
    for step in (2, 7, 9, 10, 110):
        checkpoints.save(step, {})
    # The order is numerical, not alphabetical.
    assert steps_in(tmp_path) == [9, 10, 110]
    assert len(list(tmp_path.glob("*.data-*"))) == 3


def test_checkpoints_keep_the_last_three_after_restart(model, saved):
    folder, _ = saved
    checkpoints = Checkpoints(model, folder, keep=3)
    checkpoints.restore()
    checkpoints.save(40, {"step": 40})
    assert steps_in(folder) == [20, 30, 40]


def test_restore_loads_newest_checkpoint(model, saved):
    folder, weights = saved
    assert Checkpoints(model, folder).restore() == {"step": 30}
    assert_weights(model, weights[30])


def test_restore_returns_none_for_new_folder(model, tmp_path):
    assert Checkpoints(model, tmp_path / "new").restore() is None


@pytest.mark.fault(
    "F03", "checkpoints are found by their index files; rotation continues"
)
def test_restore_works_without_state_file(model, saved):
    folder, weights = saved
    (folder / "checkpoint").unlink()
    checkpoints = Checkpoints(model, folder, keep=3)
    assert checkpoints.restore() == {"step": 30}
    assert_weights(model, weights[30])
    checkpoints.save(40, {"step": 40})
    assert steps_in(folder) == [20, 30, 40]


@pytest.mark.fault("F04", "a warning names the file; the previous one is used")
@pytest.mark.parametrize("how", DAMAGES)
def test_restore_falls_back_from_damaged_checkpoint(model, saved, caplog, how):
    folder, weights = saved
    damage(folder, 30, how)
    with caplog.at_level(logging.WARNING):
        assert Checkpoints(model, folder).restore() == {"step": 20}
    assert_weights(model, weights[20])
    (record,) = [entry for entry in caplog.records if "damaged" in entry.message]
    assert str(folder / "ckpt-30") in record.message
    assert "\n" not in record.message


@pytest.mark.fault("F04", "all damaged: an error instead of a start from step 0")
def test_restore_fails_if_all_checkpoints_are_damaged(model, saved):
    folder, _ = saved
    for step, how in zip((10, 20, 30), DAMAGES, strict=False):
        damage(folder, step, how)
    with pytest.raises(CheckpointError, match="contains no readable checkpoint"):
        Checkpoints(model, folder).restore()


def test_restore_names_a_weight_that_the_model_lacks(tmp_path):
    save_checkpoints(tiny_training_model(normalization="pre"), tmp_path)
    model = tiny_training_model()
    before = weights_of(model)
    named = "ckpt-30: the model has no weight (en|de)coder/final_norm"
    with pytest.raises(CheckpointError, match=named):
        Checkpoints(model, tmp_path).restore()
    with pytest.raises(CheckpointError, match=named):
        average_checkpoints(model.transformer, tmp_path)
    assert_weights(model, before)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"d_ff": 28}, r"ckpt-30: encoder/.*\(12, 20\) in the .* \(12, 28\)"),
        ({"num_layers": 2}, r"ckpt-30: the checkpoint has no weight .*layer"),
    ],
)
def test_restore_names_mismatched_weight(saved, changes, named):
    folder, _ = saved
    model = tiny_training_model(**changes)
    before = weights_of(model)
    with pytest.raises(CheckpointError, match=named) as error:
        Checkpoints(model, folder).restore()
    assert "\n" not in str(error.value)
    with pytest.raises(CheckpointError, match=named):
        average_checkpoints(model.transformer, folder)
    assert_weights(model, before)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        lambda: keras.optimizers.Adam(training.PaperSchedule(12), amsgrad=True),
    ],
)
def test_restore_rejects_other_optimizer(saved, optimizer):
    folder, _ = saved
    with pytest.raises(CheckpointError, match="ckpt-30: does not match the model"):
        Checkpoints(tiny_training_model(optimizer()), folder).restore()


def test_restore_accepts_new_random_generators(saved):
    """A run may resume with dropout, which needs generators that had no states."""
    folder, weights = saved
    transformer = tiny_transformer(dropout=0.2)
    model = training.TrainingModel(transformer, 0.1, word_dropout=0.1)
    model.compile(paper_adam())
    assert Checkpoints(model, folder).restore() == {"step": 30}
    for weight, expected in zip(weights_of(model), weights[30], strict=True):
        np.testing.assert_array_equal(weight, expected)


@pytest.mark.parametrize("name", ["a", "model", "transformer"])
def test_restore_ignores_model_names(tmp_path, name):
    """The name "model" is a part of the outer model's name, "training_model"."""
    transformer = tiny_transformer(name=name)
    model = training.TrainingModel(transformer, name="training_model")
    model.compile(keras.optimizers.SGD(0.1))
    Checkpoints(model, tmp_path).save(5, {"step": 5})
    other = tiny_training_model(keras.optimizers.SGD(0.1), seed=8)
    assert Checkpoints(other, tmp_path).restore() == {"step": 5}
    assert_weights(other, weights_of(transformer))


@pytest.mark.parametrize("last", [1, 2, 3, 20])
def test_average_matches_numpy_mean(model, saved, last):
    folder, weights = saved
    paths = average_checkpoints(model.transformer, folder, last)
    steps = (10, 20, 30)[-last:]
    assert paths == [str(folder / f"ckpt-{step}") for step in steps]
    for index, weight in enumerate(weights_of(model)):
        mean = np.mean([weights[step][index] for step in steps], axis=0)
        np.testing.assert_allclose(weight, mean, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("how", ["data cut off", "index empty"])
def test_average_skips_damaged_checkpoint(model, saved, caplog, how):
    folder, weights = saved
    damage(folder, 20, how)
    paths = average_checkpoints(model.transformer, folder, last=2)
    assert [path.rpartition("-")[2] for path in paths] == ["10", "30"]
    for index, weight in enumerate(weights_of(model)):
        mean = (weights[10][index] + weights[30][index]) / 2
        np.testing.assert_allclose(weight, mean, rtol=1e-6, atol=1e-7)
    assert "ckpt-20" in caplog.text


def test_average_requires_a_checkpoint(model, tmp_path):
    with pytest.raises(CheckpointError, match="no readable checkpoint"):
        average_checkpoints(model.transformer, tmp_path)
    with pytest.raises(ValueError, match="Received: 0"):
        average_checkpoints(model.transformer, tmp_path, last=0)


# Reasons for which the checkpoints of steps 10, 20 and 30 are written. A regular one is
# written on schedule or at the end of the run. Rotation keeps two regular ones.
@pytest.mark.parametrize(
    ("reasons", "kept", "averaged"),
    [
        # A checkpoint of an interruption is kept only if it is the newest.
        (["schedule", "interruption", "interruption"], [10, 30], [10]),
        (["interruption", "schedule", "schedule"], [20, 30], [20, 30]),
        (["schedule", "schedule", "end"], [20, 30], [20, 30]),
        (["schedule"] * 2 + ["interruption"], [10, 20, 30], [10, 20]),
        # The run ended at step 20 and was extended, so step 20 is no longer regular.
        (["schedule", "end", "schedule"], [10, 30], [10, 30]),
        (["interruption"] * 3, [30], [30]),
        ([None, None, "other"], [20, 30], [20, 30]),
    ],
)
def test_rotation_and_average_count_regular_checkpoints(
    model, tmp_path, reasons, kept, averaged
):
    checkpoints = Checkpoints(model, tmp_path, keep=2)
    for step, reason in zip((10, 20, 30), reasons, strict=True):
        checkpoints.save(step, {"reason": reason} if reason else {})
    assert steps_in(tmp_path) == kept
    paths = average_checkpoints(model.transformer, tmp_path, 2)
    assert [int(path.rpartition("-")[2]) for path in paths] == averaged
    (newest,) = average_checkpoints(model.transformer, tmp_path, 1, interrupted=True)
    assert newest.endswith("-30")


def test_killed_rotation_is_finished_after_restoring(model, saved):
    folder, _ = saved
    damage(folder, 30, "index empty")
    checkpoints = Checkpoints(model, folder, keep=1)
    assert checkpoints.restore() == {"step": 20}
    assert steps_in(folder) == [10, 20, 30]
    checkpoints.finish_rotation(20)
    assert steps_in(folder) == [20, 30]
    # A worker that writes no checkpoints deletes none.
    other = Checkpoints(model, folder, keep=1, writes=False)
    (folder / "ckpt-30.index").unlink()
    assert other.restore() == {"step": 20}
    other.finish_rotation(20)
    assert Checkpoints(model, folder, keep=1).restore() == {"step": 20}


@pytest.fixture(scope="module")
def resettable():
    """A model with dropout that can be reset, as if in a new process."""
    model = tiny_training_model(dropout=0.3, attention_dropout=0.2)
    return ResettableModel(model)


@pytest.fixture(scope="module")
def uninterrupted_average(resettable, tmp_path_factory):
    """Average of the last 3 checkpoints of an uninterrupted run of 9 steps."""
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    return average_of_run(resettable, folder, ())


def average_of_run(resettable, folder, stops):
    """Averages 3 checkpoints of a run of 9 steps, interrupted after each of `stops`."""
    folder.mkdir()
    for stop in (*stops, None):
        trainer = training.Trainer(resettable.reset(), folder)
        start = trainer.restore()

        def interrupt(*_, trainer=trainer, stop=stop):
            if trainer.progress.step == stop:
                signal.raise_signal(signal.SIGINT)

        trainer.log.write = interrupt
        with pytest.raises(KeyboardInterrupt) if stop else contextlib.nullcontext():
            trainer.fit(dataset(start), 9, checkpoint_steps=2, log_steps=1, bar=False)
    model = trainer.model.transformer
    paths = average_checkpoints(model, folder / "checkpoints", 3)
    assert [path.rpartition("-")[2] for path in paths] == ["6", "8", "9"]
    return weights_of(model)


@pytest.mark.parametrize("stops", [(3,), (4,), (9,), (3, 5)])
def test_interruptions_do_not_change_the_average(
    resettable, tmp_path, uninterrupted_average, stops
):
    """Step 3 has no regular checkpoint, step 4 has one, and step 9 is the last."""
    average = average_of_run(resettable, tmp_path / "run", stops)
    for weight, expected in zip(average, uninterrupted_average, strict=True):
        np.testing.assert_array_equal(weight, expected)


def make_trainer(folder, seed=3):
    """Returns a `Trainer` whose model has dropout."""
    folder.mkdir(exist_ok=True)
    model = tiny_training_model(seed=seed, dropout=0.3, attention_dropout=0.2)
    return training.Trainer(model, folder)


@pytest.mark.fault(
    "F05", "weights, Adam's slots and step count, and dropout seeds are bit-identical"
)
def test_resume_gives_bit_identical_weights(resettable, tmp_path):
    uninterrupted = training.Trainer(resettable.reset(), tmp_path / "uninterrupted")
    uninterrupted.fit(dataset(), 9, bar=False)
    expected = weights_of(uninterrupted.model)
    uninterrupted.fit(dataset(), 10, bar=False)
    later = weights_of(uninterrupted.model)
    interrupted = training.Trainer(resettable.reset(), tmp_path / "interrupted")
    interrupted.fit(dataset(), 4, bar=False)
    second = make_trainer(tmp_path / "interrupted", seed=8)
    other = ResettableModel(second.model)
    assert second.restore() == 4
    second.fit(dataset(4), 9, bar=False)
    assert_weights(second.model, expected)
    assert int(second.model.optimizer.iterations) == 9
    # Without the restored states, the weights differ, so this test can fail.
    third = training.Trainer(other.reset(), tmp_path / "other")
    third.model.transformer.set_weights(expected)
    third.fit(dataset(), 1, bar=False)
    assert not np.array_equal(weights_of(third.model)[0], later[0])


def test_restore_loads_progress(resettable, tmp_path):
    first = training.Trainer(resettable.reset(), tmp_path)
    first.progress.best_score, first.progress.best_step = 17.25, 2
    first.progress.validations_since_best = 3
    first.progress.seconds = 1000.0
    first.fit(dataset(), 2, bar=False)
    second = training.Trainer(resettable.reset(), tmp_path)
    second.restore()
    assert dataclasses.asdict(second.progress) == dataclasses.asdict(first.progress)
    assert second.progress.seconds > 1000.0
    # No step remains, and the same step gets no second checkpoint.
    newest = tmp_path / "checkpoints" / "ckpt-2.index"
    written = newest.stat().st_mtime_ns
    second.fit(dataset(2), 2, bar=False)
    second.save()
    assert newest.stat().st_mtime_ns == written


def test_failed_save_keeps_old_model(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path)
    path = trainer.save_model("best.keras")
    before = path.read_bytes()

    def fail(path):
        pathlib.Path(path).write_bytes(b"half a file")
        raise OSError("no space left")

    monkeypatch.setattr(trainer.model.transformer, "save", fail)
    with pytest.raises(OSError, match="no space left"):
        trainer.save_model("best.keras")
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.glob("*.keras")] == ["best.keras"]
    assert tf.io.gfile.glob(str(tmp_path / ".best*")) == []
