"""All that a run has reached, as comparable values."""

import json

import numpy as np
import tensorflow as tf

# What differs between two runs of the same steps: how long they took.
CLOCKS = {"seconds", "checkpoint_seconds"}
RATES = {"seconds", "tokens_per_second"}


def newest_checkpoint(run):
    """(name, {tensor: value}, progress) of a run's newest checkpoint."""
    steps = [
        int(path.stem.partition("-")[2])
        for path in (run / "checkpoints").glob("ckpt-*.index")
    ]
    reader = tf.train.load_checkpoint(str(run / "checkpoints" / f"ckpt-{max(steps)}"))
    tensors, progress = {}, None
    for name in reader.get_variable_to_shape_map():
        if name.startswith("progress/"):
            progress = json.loads(reader.get_tensor(name))
        elif not name.startswith("_CHECKPOINTABLE"):
            tensors[name] = reader.get_tensor(name)
    return max(steps), tensors, progress


def log_rows(run):
    """The rows of metrics.jsonl without what a clock decides."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        {name: value for name, value in json.loads(line).items() if name not in RATES}
        for line in lines
    ]


def model_weights(path):
    """Bytes of every weight in a .keras file, by their place in it."""
    import io
    import zipfile

    import h5py

    with zipfile.ZipFile(path) as archive:
        content = archive.read("model.weights.h5")
    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = np.asarray(item).tobytes()

    with h5py.File(io.BytesIO(content)) as file:
        file.visititems(visit)
    return found


def assert_same(run, other, same_files=True):
    """Two runs have reached the same, to the last bit.

    Args:
        run: A run's folder.
        other: Another's.
        same_files: Whether the files have the same names, too: not where a signal made
            a checkpoint.
    """
    step, tensors, progress = newest_checkpoint(run)
    other_step, other_tensors, other_progress = newest_checkpoint(other)
    assert step == other_step
    assert tensors.keys() == other_tensors.keys()
    kinds = {name.split("/")[0] for name in tensors}
    assert kinds == {"optimizer", "seeds", "weights"}
    different = [
        name
        for name in tensors
        if np.asarray(tensors[name]).tobytes()
        != np.asarray(other_tensors[name]).tobytes()
    ]
    assert different == []
    for clock in CLOCKS:
        progress.pop(clock), other_progress.pop(clock)
    assert progress == other_progress
    for name in ("model.keras", "best.keras"):
        weights = model_weights(run / name)
        assert len(weights) > 10
        assert weights == model_weights(other / name)
    assert log_rows(run) == log_rows(other)
    assert not same_files or file_names(run) == file_names(other)


def file_names(run):
    """Of all of a run's files but TensorBoard's."""
    return {path.name for path in run.rglob("*") if "events.out" not in path.name}
