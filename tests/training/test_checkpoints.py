"""Checkpoints: rotation, averages, damage, other models, and hostile files.

`fault_table.py` explains the marker `fault`.
"""

import errno
import io
import logging
import os
import random
import shutil
import zipfile

import keras
import numpy as np
import pytest
from training_samples import (
    ResettableModel,
    paper_adam,
    save_checkpoints,
    steps_in,
    tiny_training_model,
    tiny_transformer,
    weights_of,
)

from keras_transformer import training
from keras_transformer.errors import CheckpointError, RunError, StorageError
from keras_transformer.saving.checkpoints import (
    CheckpointFile,
    Damage,
    average_checkpoints,
)
from keras_transformer.training.checkpoints import Checkpoints

FLIPS = 20


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


def forge(content, name="seeds/0", compression=zipfile.ZIP_STORED):
    """Returns a checkpoint whose array `name` is replaced by bytes or an array."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def array(values):
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def alter_array(content):
    """Alters a byte of the first array, which begins 127 bytes after "NUMPY"."""
    place = content.index(b"NUMPY") + 150
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


# Changes of the content of a checkpoint.
DAMAGES = {
    "end cut off": lambda content: content[:-100],
    "half cut off": lambda content: content[: len(content) // 2],
    "a byte altered": alter_array,
    "empty": lambda content: b"",
    "another file": lambda content: b"PK is no archive",
    "no archive": lambda content: array(np.zeros(3)),
    "a pickle": lambda content: forge(array(np.array([{}])), "progress"),
    "a bomb": lambda content: forge(bytes(1 << 24), "progress", zipfile.ZIP_DEFLATED),
    "a huge shape": lambda content: forge(
        array(np.zeros(9, "uint8")).replace(b"(9,), }       ", b"(9999999999,),}"),
        "progress",
    ),
}


def damage(folder, step, how):
    path = folder / f"ckpt-{step}.npz"
    path.write_bytes(DAMAGES[how](path.read_bytes()))


def assert_weights(model, expected):
    for weight, value in zip(weights_of(model), expected, strict=True):
        np.testing.assert_array_equal(weight, value)


def test_checkpoints_keep_the_last_three(model, saved):
    folder, weights = saved
    assert Checkpoints(model, folder / "new").restore() is None
    checkpoints = Checkpoints(model, folder, keep=3)
    assert checkpoints.restore() == {"step": 30}
    assert_weights(model, weights[30])
    for step in (90, 100, 110):  # the order is numerical, not alphabetical
        checkpoints.save(step, {"step": step})
    assert steps_in(folder) == [90, 100, 110]


@pytest.mark.fault("F04", "a warning names the file; the previous one is used")
@pytest.mark.parametrize("how", DAMAGES)
def test_restore_falls_back_from_damaged_checkpoint(model, saved, caplog, how):
    folder, weights = saved
    damage(folder, 30, how)
    checkpoints = Checkpoints(model, folder, keep=2)
    with caplog.at_level(logging.WARNING):
        assert checkpoints.restore() == {"step": 20}
    assert_weights(model, weights[20])
    (record,) = [entry for entry in caplog.records if "damaged" in entry.message]
    assert str(folder / "ckpt-30.npz") in record.message
    assert "\n" not in record.message
    # Training replaces the damaged one. Undamaged ones of later steps are kept.
    checkpoints.save(25, {"step": 25})
    assert steps_in(folder) == [20, 25]
    Checkpoints(model, folder, keep=1).save(21, {"step": 21})
    assert steps_in(folder) == [21, 25]


@pytest.mark.fault("F04", "one flipped bit: detected or harmless")
def test_restore_never_loads_a_flipped_bit(model, saved, record_property):
    folder, weights = saved
    path = folder / "ckpt-30.npz"
    whole, draw = path.read_bytes(), random.Random(30)
    checkpoints, found = Checkpoints(model, folder), 0
    for _ in range(2 * FLIPS):
        content = bytearray(whole)
        content[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        step = checkpoints.restore()["step"]
        assert_weights(model, weights[step])
        found += step == 20
    # Some bytes, such as time stamps in the archive, contain no data.
    assert found > 0.6 * 2 * FLIPS
    happened = f"{found} of {2 * FLIPS} detected; no flip changed a weight"
    record_property("happened", happened)


def test_flipped_bits_of_a_header_are_damage(tmp_path):
    """Reading a header checks an array of less than 4 KiB, but not this one."""
    path, array = tmp_path / "ckpt-1.npz", np.ones((480, 20), "float32")
    np.savez(path, **{"weights/a": array})
    whole = path.read_bytes()
    begin = whole.index(b"NUMPY") - 1
    for bit in range(8 * 128):
        content = bytearray(whole)
        content[begin + bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        with pytest.raises(Damage), CheckpointFile(path) as file:
            file.check("weights", {"a": array})
            file.read("weights/a", array)


@pytest.mark.fault("F04", "all damaged: an error instead of a start from step 0")
def test_restore_fails_if_all_checkpoints_are_damaged(model, saved):
    folder, _ = saved
    for step, how in zip((10, 20, 30), DAMAGES, strict=False):
        damage(folder, step, how)
    with pytest.raises(CheckpointError, match=r"no readable checkpoint\. Restore one"):
        Checkpoints(model, folder).restore()


def test_failed_rewrite_keeps_the_checkpoint(model, saved, monkeypatch):
    """The end of a run rewrites the checkpoint of an interruption at the same step."""
    folder, weights = saved
    checkpoints = Checkpoints(model, folder)
    write = np.savez

    def fill_disk(path, **arrays):
        write(path, **arrays)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(np, "savez", fill_disk)
    before = sorted(folder.iterdir())
    with pytest.raises(StorageError, match=r"ckpt-30\.npz: cannot be written"):
        checkpoints.save(30, {"step": 30, "reason": "end"})
    assert sorted(folder.iterdir()) == before
    assert checkpoints.restore() == {"step": 30}
    assert_weights(model, weights[30])


PRE = {"normalization": "pre"}


@pytest.mark.parametrize(
    ("stored", "changes", "message"),
    [
        ({}, {"d_ff": 28}, r"encoder/.*\(12, 20\) in the .* \(12, 28\)"),
        ({}, {"num_layers": 2}, "the checkpoint has no weight .*layer"),
        ({}, PRE, "the checkpoint has no weight .*final_norm"),
        (PRE, {}, r"the model has no weight \w+coder/final_norm"),
        ({}, {"optimizer": "sgd"}, "does not match the model"),
        ({}, {"optimizer": "adam"}, "does not match the model"),
    ],
)
def test_restore_names_what_does_not_match(tmp_path, stored, changes, message):
    save_checkpoints(tiny_training_model(**stored), tmp_path)
    model = tiny_training_model(**changes)
    if changes == {"optimizer": "adam"}:
        model.compile(keras.optimizers.Adam(training.NoamSchedule(12), amsgrad=True))
    before = weights_of(model)
    reads = [Checkpoints(model, tmp_path).restore]
    if "optimizer" not in changes:  # an average does not need the optimizer
        reads.append(lambda: average_checkpoints(model.transformer, tmp_path))
    for read in reads:
        with pytest.raises(CheckpointError, match=f"ckpt-30.npz: {message}") as error:
            read()
        assert "\n" not in str(error.value)
        if "optimizer" not in changes:
            assert_weights(model, before)


def test_restore_accepts_new_random_generators(saved):
    """A run may resume with dropout, which needs generators that had no states."""
    folder, weights = saved
    transformer = tiny_transformer(dropout=0.2)
    model = training.TrainingModel(transformer, 0.1, token_dropout=0.1)
    model.compile(paper_adam())
    assert Checkpoints(model, folder).restore() == {"step": 30}
    assert_weights(model, weights[30])


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


@pytest.mark.parametrize(
    ("last", "damaged", "steps"),
    [
        *((1, None, [30]), (20, None, [10, 20, 30])),
        *((2, "half cut off", [10, 30]), (2, "empty", [10, 30])),
    ],
)
def test_average_matches_numpy_mean(model, saved, caplog, last, damaged, steps):
    folder, weights = saved
    if damaged:
        damage(folder, 20, damaged)
    paths = average_checkpoints(model.transformer, folder, last)
    assert paths == [folder / f"ckpt-{step}.npz" for step in steps]
    for index, weight in enumerate(weights_of(model)):
        mean = np.mean([weights[step][index] for step in steps], axis=0)
        np.testing.assert_allclose(weight, mean, rtol=1e-6, atol=1e-7)
    assert ("ckpt-20" in caplog.text) == bool(damaged)


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
    assert [path.name for path in paths] == [f"ckpt-{step}.npz" for step in averaged]
    (newest,) = average_checkpoints(model.transformer, tmp_path, 1, interrupted=True)
    assert newest.name == "ckpt-30.npz"


def test_killed_rotation_is_finished_after_restoring(model, saved):
    folder, _ = saved
    damage(folder, 30, "empty")
    checkpoints = Checkpoints(model, folder, keep=1)
    assert checkpoints.restore() == {"step": 20}
    assert steps_in(folder) == [10, 20, 30]
    checkpoints.finish_rotation(20)
    assert steps_in(folder) == [20, 30]
    # A worker that writes no checkpoints deletes none.
    other = Checkpoints(model, folder, keep=1, writes=False)
    (folder / "ckpt-30.npz").unlink()
    assert other.restore() == {"step": 20}
    other.finish_rotation(20)
    assert Checkpoints(model, folder, keep=1).restore() == {"step": 20}


@pytest.mark.fault("F23", "forged progress: a warning names the key; no traceback")
@pytest.mark.parametrize(
    ("progress", "reason"),
    [
        ([], "the content is wrong"),
        ({"step": True}, "'step' is wrong"),
        ({"step": 3, "replicas": 0}, "'replicas' is wrong"),
        ({"step": 3, "metrics": [1.0]}, "'metrics' is wrong: must have"),
        ({"step": 10**30}, "'step' is wrong: Input should be a valid integer"),
    ],
)
def test_checkpoint_with_forged_progress_counts_as_damaged(
    model, tmp_path, caplog, progress, reason
):
    Checkpoints(model, tmp_path / "checkpoints").save(3, progress)
    with pytest.raises(CheckpointError, match=r"no readable checkpoint\. Restore one"):
        training.Trainer(model, tmp_path).restore()
    (record,) = caplog.records
    assert "ckpt-3.npz: damaged" in record.getMessage()
    assert f"progress: {reason}" in record.getMessage()


def test_valid_progress_of_any_version_is_restored(model, tmp_path):
    checkpoints = Checkpoints(model, tmp_path / "checkpoints")
    checkpoints.save(3, {"step": 3, "best_score": float("inf"), "of the future": 1})
    trainer = training.Trainer(model, tmp_path)
    assert trainer.restore() == 3
    assert trainer.progress.best_score == float("inf")
    assert not hasattr(trainer.progress, "of the future")


@pytest.mark.timeout(60)
@pytest.mark.fault("F23", "a checkpoint that is a pipe is rejected, not read")
def test_checkpoint_that_is_a_pipe_is_refused(model, tmp_path):
    checkpoints = Checkpoints(model, tmp_path)
    checkpoints.save(3, {"step": 3})
    (tmp_path / "ckpt-3.npz").unlink()
    os.mkfifo(tmp_path / "ckpt-3.npz")
    for read in (
        checkpoints.restore,
        lambda: average_checkpoints(model.transformer, tmp_path),
    ):
        with pytest.raises(CheckpointError, match=r"ckpt-3.*regular file"):
            read()


def test_restore_names_the_damaged_line_of_the_log_or_removes_a_partial_one(
    model, tmp_path
):
    path = tmp_path / "metrics.jsonl"
    line = b'{"split": "train", "step": 0, "seconds": 1.5}\n'
    for content, reason in (
        (line + b"\xff\n{}\n", ":2: cannot be read"),
        (b'{"split": "x", "step": 1, "bleu": "1"}\n', ":1: 'bleu' is wrong"),
    ):
        path.write_bytes(content)
        with pytest.raises(RunError, match=f"metrics.jsonl{reason}"):
            training.Trainer(model, tmp_path).restore()
        assert path.read_bytes() == content
    path.write_bytes(line + b'{"split')
    assert training.Trainer(model, tmp_path).restore() == 0
    assert path.read_bytes() == line
