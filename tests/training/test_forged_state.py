"""Checkpoint folders from untrusted sources.

`fault_table.py` explains the marker `fault`.
"""

import json
import os

import pytest
import tensorflow as tf
from training_samples import tiny_training_model

from keras_transformer.errors import CheckpointError, RunError
from keras_transformer.saving.checkpoints import average_checkpoints, checkpoint_paths
from keras_transformer.training.checkpoints import Checkpoints
from keras_transformer.training.trainer import Trainer


@pytest.mark.fault("F23", "a forged state file: no file elsewhere is deleted")
@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_forged_state_file_deletes_nothing_elsewhere(tmp_path, has_checkpoint):
    folder, others = tmp_path / "run", tmp_path / "others"
    others.mkdir()
    model = tiny_training_model()
    Checkpoints(model, folder, keep=3).save(10, {})
    if not has_checkpoint:
        for path in folder.iterdir():
            path.unlink()
    names = [str(others / f"ckpt-{step}") for step in (1, 2, 3)]
    for name in names:
        for suffix in (".index", ".data-00000-of-00001"):
            with open(name + suffix, "w", encoding="utf-8") as file:
                file.write("somebody's")
    tf.compat.v1.train.update_checkpoint_state(
        str(folder),
        names[-1],
        names,
        all_model_checkpoint_timestamps=[1.0, 2.0, 3.0],
        last_preserved_timestamp=0.0,
    )
    again = Checkpoints(model, folder, keep=1)
    again.save(20, {})
    again.save(30, {})
    assert len(list(others.iterdir())) == 6
    kept = checkpoint_paths(folder)
    assert [path.rpartition("-")[2] for path in kept] == ["30"]


@pytest.fixture(scope="module")
def model():
    return tiny_training_model()


@pytest.mark.fault("F23", "forged progress: a warning names the key; no traceback")
@pytest.mark.parametrize(
    ("progress", "reason"),
    [
        ([], "the content is wrong"),
        ({"step": "3"}, "'step' is wrong"),
        ({"step": -3}, "'step' is wrong"),
        ({"step": True}, "'step' is wrong"),
        ({"step": 1.5}, "'step' is wrong"),
        ({"step": 3, "replicas": 0}, "'replicas' is wrong"),
        ({"step": 3, "text": 7}, "'text' is wrong"),
        ({"step": 3, "metrics": [1.0]}, "'metrics' is wrong: must have"),
        ({"step": 3, "metrics": [[[1]]]}, "'metrics.0' is wrong"),
        ({"step": 10**30}, "cannot be read: the number"),
    ],
)
def test_checkpoint_with_forged_progress_counts_as_damaged(
    model, tmp_path, caplog, progress, reason
):
    Checkpoints(model, tmp_path / "checkpoints").save(3, progress)
    with pytest.raises(CheckpointError, match="contains no readable checkpoint"):
        Trainer(model, tmp_path).restore()
    (record,) = caplog.records
    assert "ckpt-3: damaged" in record.getMessage()
    assert f"progress: {reason}" in record.getMessage()


def test_valid_progress_of_any_version_is_restored(model, tmp_path):
    checkpoints = Checkpoints(model, tmp_path / "checkpoints")
    checkpoints.save(3, {"step": 3, "best_score": float("inf"), "of the future": 1})
    trainer = Trainer(model, tmp_path)
    assert trainer.restore() == 3
    assert trainer.progress.best_score == float("inf")
    assert not hasattr(trainer.progress, "of the future")


@pytest.mark.timeout(60)
@pytest.mark.fault("F23", "a checkpoint's file that is a pipe is rejected, not read")
@pytest.mark.parametrize("name", ["ckpt-3.index", "ckpt-3.data-00000-of-00001"])
def test_checkpoint_with_a_pipe_is_refused(model, tmp_path, name):
    checkpoints = Checkpoints(model, tmp_path)
    checkpoints.save(3, {"step": 3})
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(CheckpointError, match=f"{name}: must be a regular file"):
        checkpoints.restore()
    with pytest.raises(CheckpointError, match=f"{name}: must be a regular file"):
        average_checkpoints(model.transformer, tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[1, 2]\n{}\n", ":1: the content is wrong"),
        (b'{"split": "train", "step": 1}\n\xff\n{}\n', ":2: cannot be read"),
        (b'{"split": "train", "step": -1}\n', ":1: 'step' is wrong"),
        (b'{"split": "x", "step": 1, "bleu": "1"}\n', ":1: 'bleu' is wrong"),
    ],
)
def test_restore_names_the_damaged_line_of_the_log(model, tmp_path, content, reason):
    (tmp_path / "metrics.jsonl").write_bytes(content)
    with pytest.raises(RunError, match=f"metrics.jsonl{reason}"):
        Trainer(model, tmp_path).restore()
    assert (tmp_path / "metrics.jsonl").read_bytes() == content


def test_restore_removes_a_partial_line_of_the_log(model, tmp_path):
    rows = [{"split": "train", "step": step, "seconds": 1.5} for step in (0, 7)]
    lines = [json.dumps(row) for row in rows]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"split')
    assert Trainer(model, tmp_path).restore() == 0
    assert (tmp_path / "metrics.jsonl").read_text() == lines[0] + "\n"
