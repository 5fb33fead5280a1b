"""The mean of a run's last checkpoints (section 6.1)."""

import numpy as np
import tensorflow as tf

from keras_transformer.training.checkpoints import DAMAGE
from keras_transformer.training.checkpoints import CheckpointError
from keras_transformer.training.checkpoints import check_shapes
from keras_transformer.training.checkpoints import checkpoint_paths
from keras_transformer.training.checkpoints import warn_of_damage
from keras_transformer.training.checkpoints import weights_by_path


def average_checkpoints(transformer, folder, last=5):
    """Sets a model's weights to the mean of the newest checkpoints'.

    The paper averages the last 5 checkpoints of base and the last 20 of big.

    Args:
        transformer: A built `Transformer`.
        folder: Where the checkpoints lie.
        last: Number of checkpoints; fewer are taken where there are fewer. One that
            cannot be read is left out with a warning.

    Returns:
        Paths of the checkpoints that were averaged, oldest first.

    Raises:
        CheckpointError: no checkpoint, or one of another model.
        ValueError: `last` below 1.
    """
    if last < 1:
        raise ValueError(f"`last` must be at least 1. Received: {last}.")
    weights = weights_by_path(transformer)["weights"]
    checkpoint = tf.train.Checkpoint(weights=weights)
    sums = {name: np.zeros(value.shape, "float64") for name, value in weights.items()}
    paths = []
    for path in reversed(checkpoint_paths(folder)):
        try:
            check_shapes(checkpoint, path)
            status = checkpoint.read(path).expect_partial()
            status.assert_existing_objects_matched()
        except DAMAGE as error:
            warn_of_damage(path, error)
            continue
        for name, value in weights.items():
            sums[name] += value.numpy()
        paths.insert(0, path)
        if len(paths) == last:
            break
    if not paths:
        raise CheckpointError(f"{folder}: no checkpoint there that can be read")
    for name, value in weights.items():
        value.assign((sums[name] / len(paths)).astype("float32"))
    return paths
