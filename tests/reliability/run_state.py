"""The state of a run as values that can be compared."""

import json

import numpy as np
import tensorflow as tf

# Times and rates in a checkpoint's `progress` and in metrics.jsonl, which differ
# between runs of the same steps.
PROGRESS_TIMES = {"seconds", "checkpoint_seconds"}
LOG_TIMES = {"seconds", "tokens_per_second"}


def newest_checkpoint(run):
    """Returns step, {tensor name: value} and progress of a run's newest checkpoint."""
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
    """Returns the rows of metrics.jsonl without times and throughputs."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        {
            name: value
            for name, value in json.loads(line).items()
            if name not in LOG_TIMES
        }
        for line in lines
    ]


def model_weights(path):
    """Returns the bytes of every weight in a .keras file, by path."""
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
    """Asserts that two runs are bit-identical.

    Args:
        run: A run folder.
        other: Another run folder.
        same_files: Whether the file names must be equal, too. They differ if a signal
            triggered an additional checkpoint.
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
    for name in PROGRESS_TIMES:
        progress.pop(name), other_progress.pop(name)
    assert progress == other_progress
    for name in ("model.keras", "best.keras"):
        weights = model_weights(run / name)
        assert len(weights) > 10
        assert weights == model_weights(other / name)
    assert log_rows(run) == log_rows(other)
    assert not same_files or file_names(run) == file_names(other)


def file_names(run):
    """Returns the names of a run's files, except TensorBoard's."""
    return {path.name for path in run.rglob("*") if "events.out" not in path.name}
