"""Reading and averaging of checkpoints (section 6.1 of the paper)."""

import logging
import math
import pathlib
import re

import numpy as np
import tensorflow as tf
from pydantic import BaseModel

from keras_transformer.errors import CheckpointError, require_backend
from keras_transformer.files import require_readable_path
from keras_transformer.saving.names import SAVED, checkpoint_paths
from keras_transformer.untrusted import escape_controls, parse_json, require_regular

logger = logging.getLogger(__name__)


# Reasons for which a checkpoint is written.
SCHEDULE, END, INTERRUPTION = "schedule", "end", "interruption"
_WEIGHT = re.compile(r"weights/[^/]+/\.ATTRIBUTES/VARIABLE_VALUE")
_PROGRESS = "progress/.ATTRIBUTES/VARIABLE_VALUE"


def average_checkpoints(transformer, folder, last=5, interrupted=False):
    """Sets a model's weights to the average of the newest checkpoints.

    The paper averages 5 checkpoints of its base model and 20 of its big model. Only
    regular checkpoints count (see `regular_paths`), so that interruptions do not change
    the average. If there are none, the newest checkpoint is used. If a checkpoint has
    moving averages of the weights (`training.ema_momentum`), these are used in place of
    its weights.

    Args:
        transformer: A built `Transformer`.
        folder: Folder of the checkpoints.
        last: Maximum number of checkpoints. Damaged ones are skipped with a warning.
        interrupted: Whether checkpoints written on interruption also count.

    Returns:
        Paths of the checkpoints that were averaged, oldest first.

    Raises:
        CheckpointError: If no checkpoint can be read, or a checkpoint does not have the
            model's weights and shapes.
        ValueError: If `last` is below 1.
    """
    require_backend("reading checkpoints", "tensorflow")
    if last < 1:
        raise ValueError(f"`last` must be at least 1. Received: {last}.")
    weights = weights_by_path(transformer)["weights"]
    checkpoint = tf.train.Checkpoint(weights=weights)
    moving_average = tf.train.Checkpoint(
        averages={
            path_in_model(weight, transformer): weight.value
            for weight in transformer.trainable_weights
        }
    )
    sums = {name: np.zeros(value.shape, "float64") for name, value in weights.items()}
    paths, found = [], checkpoint_paths(folder)
    if not interrupted:
        found = regular_paths(found) or found[-1:]
    for path in reversed(found):
        try:
            require_regular(checkpoint_files(path), CheckpointError)
            check_shapes(checkpoint, path)
            status = checkpoint.read(path).expect_partial()
            status.assert_existing_objects_matched()
            stored = tf.train.load_checkpoint(path).get_variable_to_shape_map()
            if any(name.startswith("averages/") for name in stored):
                check_shapes(moving_average, path, "averages")
                moving_average.read(path).expect_partial()
        except DAMAGE as error:
            warn_of_damage(path, error)
            continue
        for name, value in weights.items():
            sums[name] += value.numpy()
        paths.insert(0, path)
        if len(paths) == last:
            break
    if not paths:
        raise CheckpointError(f"{folder}: no readable checkpoint")
    for name, value in weights.items():
        value.assign((sums[name] / len(paths)).astype("float32"))
    return paths


def count_stored_weights(folder):
    """Counts the parameters in the newest readable checkpoint, without a model."""
    damaged = {}
    for path in reversed(checkpoint_paths(folder)):
        files = checkpoint_files(path)
        try:
            require_regular(files, CheckpointError)
            reader = tf.train.load_checkpoint(path)
            shapes, dtypes = (
                reader.get_variable_to_shape_map(),
                reader.get_variable_to_dtype_map(),
            )
        except DAMAGE as error:
            damaged[path] = error
            continue
        sizes = {
            name: math.prod(shape)
            for name, shape in shapes.items()
            if _WEIGHT.fullmatch(name)
        }
        num_bytes = sum(size * dtypes[name].size for name, size in sizes.items())
        if num_bytes <= sum(file.stat().st_size for file in files):
            return sum(sizes.values())
        damaged[path] = "its files are smaller than its weights"
    for path, error in damaged.items():
        warn_of_damage(path, error)
    raise CheckpointError(f"{folder}: no readable checkpoint")


def regular_paths(paths):
    """Returns the paths of checkpoints that count in an average, oldest first.

    These are the scheduled checkpoints, and the last one of a finished run.
    """
    reasons = [_reason(path) for path in paths]
    # If a finished run was extended, its former last checkpoint no longer counts.
    return [
        path
        for path, reason in zip(paths, reasons, strict=True)
        if reason == SCHEDULE or (reason == END and path == paths[-1])
    ]


class _Progress(BaseModel):
    """The part of a checkpoint's progress that averaging needs."""

    reason: str


def _reason(path):
    """Returns the reason for which a checkpoint was written."""
    try:
        require_regular(checkpoint_files(path))
        progress = tf.train.load_checkpoint(path).get_tensor(_PROGRESS)
        reason = parse_json(progress, _Progress, "progress", finite=False).reason
    # Damaged checkpoints are reported later, when their weights are read.
    except Exception:
        return SCHEDULE
    return reason if reason in (END, INTERRUPTION) else SCHEDULE


# Exceptions raised by reading a truncated, altered, or half-deleted checkpoint.
DAMAGE = (tf.errors.OpError, IndexError)


def refuse_lost_checkpoints(folder):
    """Raises `CheckpointError` if checkpoints were written, but none is left."""
    if (folder / SAVED).is_file() and not checkpoint_paths(folder):
        raise CheckpointError(
            f"{folder}: checkpoints were written, but none is left. Restore them, or "
            "start over with `restart`"
        )


def checkpoint_files(path):
    """Returns the files of a checkpoint, for `require_regular`."""
    path = pathlib.Path(path)
    require_readable_path(path, CheckpointError)
    return [*path.parent.glob(f"{path.name}.*")]


def warn_of_damage(path, error):
    """Logs a warning that a checkpoint cannot be read and is skipped."""
    reason = escape_controls(str(error).strip().partition("\n")[0])
    logger.warning("%s: damaged and skipped: %s", path, reason)


def weights_by_path(transformer):
    """Returns the variables of a model under the names that a checkpoint uses."""
    weights = {
        path_in_model(variable, transformer): variable.value
        for variable in transformer.weights
    }
    # The states of random generators are variables, but not weights.
    paths = {weight.path for weight in transformer.weights}
    states = [each.value for each in transformer.variables if each.path not in paths]
    seeds = {str(index): state for index, state in enumerate(states)}
    return {"weights": weights, "seeds": seeds}


def path_in_model(variable, transformer):
    """Returns the path of a model's variable, without the names of outer models."""
    # The names of outer models differ between processes.
    names = variable.path.split("/")
    return "/".join(names[names.index(transformer.name) + 1 :])


def check_shapes(checkpoint, path, group="weights"):
    """Checks that a checkpoint has exactly a model's variables, with their shapes."""
    stored = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    prefix, suffix = f"{group}/", "/.ATTRIBUTES/VARIABLE_VALUE"
    shapes = {
        key.removeprefix(prefix).removesuffix(suffix).replace(".S", "/"): shape
        for key, shape in stored.items()
        if key.startswith(prefix)
    }
    variables = getattr(checkpoint, group)
    for name in shapes:
        if name not in variables:
            raise CheckpointError(
                f"{path}: the model has no weight {name}. Check that the checkpoint "
                "belongs to this model."
            )
    for name, variable in variables.items():
        shape = shapes.get(name)
        if shape is None:
            raise CheckpointError(
                f"{path}: the checkpoint has no weight {name}. Check that it belongs "
                "to this model."
            )
        if tuple(shape) != tuple(variable.shape):
            raise CheckpointError(
                f"{path}: {name} has shape {tuple(shape)} in the checkpoint but "
                f"{tuple(variable.shape)} in the model. Check that the recipe and the "
                "vocabulary are unchanged."
            )
