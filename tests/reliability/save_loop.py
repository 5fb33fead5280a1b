"""Restores a checkpoint, then saves others until the test kills this process."""

import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))


def value_of(step):
    """Returns the value that all weights have at a step."""
    return np.float32(step % 1024) / 8


def main(folder):
    from training_samples import tiny_training_model

    from keras_transformer.runs import folder as run_folder
    from keras_transformer.training.checkpoints import Checkpoints

    folder = pathlib.Path(folder)
    run_folder.clean(folder)
    model = tiny_training_model()
    checkpoints = Checkpoints(model, folder / "checkpoints", keep=3)
    progress = checkpoints.restore() or {"step": 0}
    restored = progress["step"]
    if restored:
        values = {
            float(number)
            for weight in model.transformer.get_weights()
            for number in np.unique(weight)
        }
        assert values == {float(value_of(restored))}, (restored, values)
    print(f"restored {restored}", flush=True)
    # The loop is finite, in case nothing kills the process.
    for step in range(restored + 1, restored + 10_001):
        model.transformer.set_weights(
            [
                np.full_like(weight, value_of(step))
                for weight in model.transformer.get_weights()
            ]
        )
        checkpoints.save(step, {"step": step})
        print(f"saved {step}", flush=True)
