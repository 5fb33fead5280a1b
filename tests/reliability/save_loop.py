"""Run by test_kills_while_saving.py: restores, then saves without end."""

import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "training"))


def value_of(step):
    """What every weight holds at a step."""
    return np.float32(step % 1024) / 8


def main(folder):
    from training_samples import tiny_training_model

    from keras_transformer import run_folder
    from keras_transformer.training.checkpoints import Checkpoints

    folder = pathlib.Path(folder)
    run_folder.clean(folder)
    model = tiny_training_model()
    checkpoints = Checkpoints(model, folder / "checkpoints", keep=3)
    progress = checkpoints.restore() or {"step": 0}
    step = progress["step"]
    if step:
        values = {
            float(number)
            for weight in model.transformer.get_weights()
            for number in np.unique(weight)
        }
        assert values == {float(value_of(step))}, (step, values)
    print(f"restored {step}", flush=True)
    while True:
        step += 1
        model.transformer.set_weights(
            [
                np.full_like(weight, value_of(step))
                for weight in model.transformer.get_weights()
            ]
        )
        checkpoints.save(step, {"step": step})
        print(f"saved {step}", flush=True)
