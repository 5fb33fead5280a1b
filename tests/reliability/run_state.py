"""The state of a run as values that can be compared."""

import json

import numpy as np
from training_samples import log_rows, steps_in, without_clocks

from keras_transformer.saving.keras_file import read


def assert_same(run, other, same_files=True):
    """Asserts that two runs are bit-identical.

    Args:
        run: A run folder.
        other: Another run folder.
        same_files: Whether the file names must be equal, too. They differ if a signal
            triggered an additional checkpoint.
    """
    found, expected = newest_checkpoint(run), newest_checkpoint(other)
    groups = {name.split("/")[0] for name in found}
    assert groups == {"step", "optimizer", "progress", "seeds", "weights"}
    assert found.keys() == expected.keys()
    assert [name for name in found if found[name] != expected[name]] == []
    for name in ("model.keras", "best.keras"):
        weights = model_weights(run / name)
        assert len(weights) > 10
        assert weights == model_weights(other / name)
    assert log_rows(run) == log_rows(other)
    if same_files:
        differing = {*file_names(run)} ^ {*file_names(other)}
        assert not differing, differing


def newest_checkpoint(run):
    """Returns step, progress, and the bytes of each array of a run's checkpoint."""
    step = steps_in(run / "checkpoints")[-1]
    with np.load(run / "checkpoints" / f"ckpt-{step}.npz") as arrays:
        found = {name: array.tobytes() for name, array in arrays.items()}
    found["progress"] = without_clocks(json.loads(found["progress"]))
    return {"step": step, **found}


def model_weights(path):
    return [weight.tobytes() for weight in read(path).get_weights()]


def file_names(run):
    """Returns the names of a run's files, except TensorBoard's."""
    return {path.name for path in run.rglob("*") if "events.out" not in path.name}
