"""Checkpoints with flipped bits, broken state files, full disks, and their rotation.

The state file is TensorFlow's `checkpoint`, which lists the checkpoints of a folder.
`fault_table.py` explains the marker `fault`.
"""

import logging
import random

import numpy as np
import pytest
import tensorflow as tf
from training_samples import (
    save_checkpoints,
    shift_weights,
    steps_in,
    tiny_training_model,
    weights_of,
)

from keras_transformer.errors import StorageError
from keras_transformer.training.checkpoints import Checkpoints

FLIPS = 20


@pytest.fixture
def saved(tmp_path):
    """A model, the folder with its checkpoints of 3 steps, and {step: weights}."""
    model = tiny_training_model()
    return model, tmp_path, save_checkpoints(model, tmp_path)


def are_equal(weights, others):
    return all(map(np.array_equal, weights, others))


@pytest.mark.fault("F04", "one flipped bit in either file: detected or harmless")
@pytest.mark.parametrize("name", ["ckpt-30.index", "ckpt-30.data-00000-of-00001"])
def test_restore_never_loads_a_flipped_bit(saved, name, caplog, record_property):
    model, folder, weights = saved
    path = folder / name
    whole = path.read_bytes()
    draw = random.Random(name)
    checkpoints = Checkpoints(model, folder)
    found = 0
    for _ in range(FLIPS):
        content = bytearray(whole)
        content[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        shift_weights(model)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            step = checkpoints.restore()["step"]
        assert are_equal(weights_of(model), weights[step])
        assert ("ckpt-30" in caplog.text) == (step == 20)
        found += step == 20
    # A few bytes, such as a block's padding, contain no data and have no checksum.
    assert found > 0.8 * FLIPS
    happened = f"{found} of {FLIPS} detected; no flip changed a weight"
    record_property("happened", happened)


@pytest.mark.fault("F04", "training resumes from the previous one and replaces it")
def test_save_deletes_damaged_checkpoint(saved):
    model, folder, _ = saved
    path = folder / "ckpt-30.index"
    path.write_bytes(path.read_bytes()[:50])
    checkpoints = Checkpoints(model, folder, keep=2)
    assert checkpoints.restore() == {"step": 20}
    checkpoints.save(25, {"step": 25})
    assert steps_in(folder) == [20, 25]
    assert Checkpoints(model, folder).restore() == {"step": 25}
    # Undamaged checkpoints of later steps are not deleted.
    Checkpoints(model, folder, keep=1).save(21, {"step": 21})
    assert steps_in(folder) == [21, 25]


@pytest.mark.fault("F03", "an empty or damaged file is ignored; rotation continues")
@pytest.mark.parametrize("content", [b"", b"\x00\xff garbage {", b'model: "nowhere"'])
def test_restore_ignores_broken_state_file(saved, content):
    model, folder, weights = saved
    (folder / "checkpoint").write_bytes(content)
    shift_weights(model)
    checkpoints = Checkpoints(model, folder, keep=2)
    assert checkpoints.restore() == {"step": 30}
    assert are_equal(weights_of(model), weights[30])
    checkpoints.save(40, {"step": 40})
    assert steps_in(folder) == [30, 40]
    assert len(list(folder.glob("ckpt-*.data-*"))) == 2


def test_tensorflow_reads_state_file(saved):
    _, folder, _ = saved
    assert tf.train.latest_checkpoint(str(folder)) == str(folder / "ckpt-30")
    state = tf.train.get_checkpoint_state(str(folder))
    names = [str(folder / f"ckpt-{step}") for step in (10, 20, 30)]
    assert list(state.all_model_checkpoint_paths) == names


def test_failed_rewrite_keeps_the_checkpoint(saved, monkeypatch):
    """The end of a run rewrites the checkpoint of an interruption at the same step."""
    model, folder, weights = saved
    checkpoints = Checkpoints(model, folder)
    assert checkpoints.restore() == {"step": 30}
    write = tf.train.Checkpoint.write

    def fill_disk(self, path):
        write(self, path)
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(tf.train.Checkpoint, "write", fill_disk)
    before = sorted(folder.iterdir())
    with pytest.raises(StorageError, match=r"ckpt-30: cannot be written"):
        checkpoints.save(30, {"step": 30, "reason": "end"})
    assert sorted(folder.iterdir()) == before
    monkeypatch.undo()
    shift_weights(model)
    assert Checkpoints(model, folder).restore() == {"step": 30}
    assert are_equal(weights_of(model), weights[30])
