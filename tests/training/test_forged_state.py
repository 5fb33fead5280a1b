"""Checkpoint folders from untrusted sources."""

import pytest
import tensorflow as tf
from training_samples import tiny_training_model

from keras_transformer.saving.checkpoints import checkpoint_paths
from keras_transformer.training.checkpoints import Checkpoints


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
