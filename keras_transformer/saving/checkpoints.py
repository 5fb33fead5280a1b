"""Files of checkpoints, and their averages (section 6.1 of the paper).

A checkpoint is a `.npz` file of NumPy, which all backends read. The arrays of a group
are named `GROUP/NAME`. The groups are the model's `weights`, their moving `averages` if
there are any, the variables of the `optimizer`, and the states of random generators,
`seeds` and `training_seeds`. The array `progress` contains JSON.
"""

import contextlib
import errno
import logging
import math
import zipfile

import numpy as np
from pydantic import BaseModel

from keras_transformer.errors import CheckpointError
from keras_transformer.layers.adapters import adapter_weights
from keras_transformer.saving.names import SAVED, checkpoint_paths
from keras_transformer.untrusted import (
    MAX_JSON_BYTES,
    escape_controls,
    open_regular,
    parse_json,
)

logger = logging.getLogger(__name__)

# Reasons for which a checkpoint is written.
SCHEDULE, END, INTERRUPTION = "schedule", "end", "interruption"
# What the groups of arrays contain, for messages.
_KINDS = {"weights": "weight", "averages": "moving average of"}


class Damage(Exception):
    """A checkpoint is truncated or altered."""


class CheckpointFile:
    """A checkpoint that is open for reading, inside its context.

    The file may be untrusted. Its arrays are not read before they are requested, and
    none needs more memory than the file has bytes.

    Raises:
        Damage: If the file cannot be read. Its methods raise this error too.
        CheckpointError: If the path is not a regular file.
    """

    def __init__(self, path):
        self.path = path
        with contextlib.ExitStack() as stack, _convert_damage():
            file = stack.enter_context(open_regular(path, CheckpointError))
            self._archive = zipfile.ZipFile(file)
            members = self._archive.infolist()
            for member in members:
                # The archive has all names twice. Opening compares them.
                self._archive.open(member).close()
            if {each.compress_type for each in members} != {zipfile.ZIP_STORED}:
                raise ValueError("its arrays are compressed")
            if sum(each.file_size for each in members) > path.stat().st_size:
                raise ValueError("its arrays need more bytes than the file has")
            self._closing = stack.pop_all()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._closing.close()

    def names(self, group):
        """Returns the names of the arrays in a group."""
        prefix, suffix = f"{group}/", ".npy"
        return [
            name.removeprefix(prefix).removesuffix(suffix)
            for name in self._archive.namelist()
            if name.startswith(prefix)
        ]

    def shape(self, name):
        """Returns the shape of the array `GROUP/NAME`."""
        with _convert_damage():
            member = self._archive.getinfo(f"{name}.npy")
            with self._archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                shape, _, dtype = np.lib.format.read_array_header_1_0(file)
                size = math.prod(shape) * dtype.itemsize
                # A flipped bit of the header may move the beginning of the array.
                is_whole = file.tell() + size == member.file_size
            if version != (1, 0) or not is_whole or min(shape, default=0) < 0:
                raise ValueError(f"{name} does not have the size of its shape")
        return shape

    def check(self, group, variables):
        """Checks that a group consists of variables, given by name, of equal shapes.

        If not, raises `CheckpointError`.
        """
        names = self.names(group)
        if unknown := [name for name in names if name not in variables]:
            raise CheckpointError(
                f"{self.path}: the model has no {_KINDS[group]} {unknown[0]}. Check "
                "that the checkpoint belongs to this model"
            )
        for name, variable in variables.items():
            if name not in names:
                raise CheckpointError(
                    f"{self.path}: the checkpoint has no {_KINDS[group]} {name}. Check "
                    "that it belongs to this model"
                )
            shape = self.shape(f"{group}/{name}")
            if shape != tuple(variable.shape):
                raise CheckpointError(
                    f"{self.path}: {name} has shape {shape} in the checkpoint but "
                    f"{tuple(variable.shape)} in the model. Check that the recipe and "
                    "the vocabulary are unchanged"
                )

    def read(self, name, variable):
        """Returns the array `GROUP/NAME` with the shape and dtype of a variable."""
        array = self._array(name)
        with _convert_damage():
            # NumPy stores bfloat16 without its name.
            if array.dtype == "V2":
                array = array.view("bfloat16")
            if array.shape != tuple(variable.shape):
                raise ValueError(f"{name} has shape {array.shape}")
            return array.astype(variable.dtype, copy=False)

    def read_progress(self, schema):
        """Returns the progress of the run, converted to a type (see `parse_json`)."""
        size = math.prod(self.shape("progress"))
        if size > MAX_JSON_BYTES:
            raise Damage(
                f"the progress has {size:,} bytes, but at most {MAX_JSON_BYTES:,} are "
                "allowed"
            )
        content = self._array("progress").tobytes()
        # The best perplexity of a poor model may be infinite.
        return parse_json(content, schema, "progress", Damage, finite=False)

    def _array(self, name):
        self.shape(name)
        with _convert_damage(), self._archive.open(f"{name}.npy") as file:
            return np.lib.format.read_array(file)


@contextlib.contextmanager
def _convert_damage():
    """Converts the many exceptions of NumPy and `zipfile` to `Damage`."""
    try:
        yield
    except (CheckpointError, MemoryError):
        raise
    except Exception as error:
        # Errors of the disk or the process say nothing about the file.
        if getattr(error, "errno", None) in (errno.EIO, errno.EMFILE, errno.ENFILE):
            raise
        raise Damage(f"{type(error).__name__}: {error}") from None


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
    if last < 1:
        raise ValueError(f"`last` must be at least 1. Received: {last}.")
    weights = variables_by_name(transformer)["weights"]
    trainable = {
        path_in_model(w, transformer): w for w in transformer.trainable_weights
    }
    sums = {name: np.zeros(each.shape, "float64") for name, each in weights.items()}
    averaged, found = [], [*checkpoint_paths(folder).values()]
    if not interrupted:
        found = regular_paths(found) or found[-1:]
    for path in reversed(found):
        try:
            with CheckpointFile(path) as file:
                file.check("weights", weights)
                averages = file.names("averages")
                if averages:
                    file.check("averages", trainable)
                values = {}
                for name, variable in weights.items():
                    group = "averages" if name in averages else "weights"
                    values[name] = file.read(f"{group}/{name}", variable)
        except Damage as error:
            warn_of_damage(path, error)
            continue
        for name, value in values.items():
            sums[name] += value
        averaged.insert(0, path)
        if len(averaged) == last:
            break
    if not averaged:
        raise CheckpointError(
            f"{folder}: no readable checkpoint. Restore one, or use best.keras or "
            "model.keras of the run"
        )
    for name, variable in weights.items():
        variable.assign((sums[name] / len(averaged)).astype("float32"))
    return averaged


def count_stored_weights(folder):
    """Counts the parameters in the newest readable checkpoint, without a model."""
    for path in reversed(checkpoint_paths(folder).values()):
        try:
            with CheckpointFile(path) as file:
                names = file.names("weights")
                return sum(math.prod(file.shape(f"weights/{name}")) for name in names)
        except Damage as error:
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

    reason: str = SCHEDULE


def _reason(path):
    """Returns the reason for which a checkpoint was written."""
    # Damaged checkpoints are reported later, when their weights are read.
    with contextlib.suppress(Damage, CheckpointError), CheckpointFile(path) as file:
        reason = file.read_progress(_Progress).reason
        if reason in (END, INTERRUPTION):
            return reason
    return SCHEDULE


def refuse_lost_checkpoints(folder):
    """Raises `CheckpointError` if checkpoints were written, but none is left."""
    if (folder / SAVED).is_file() and not checkpoint_paths(folder):
        raise CheckpointError(
            f"{folder}: checkpoints were written, but none is left. Restore them, or "
            "start over with `restart`"
        )


def warn_of_damage(path, error):
    """Logs a warning that a checkpoint cannot be read and is skipped."""
    reason = escape_controls(str(error).strip().partition("\n")[0])
    logger.warning("%s: damaged and skipped: %s", path, reason)


def variables_by_name(transformer):
    """Returns the variables of a model by group and name, as a checkpoint has them.

    Of a model with adapters, whose other weights are frozen, it has only the adapters.
    """
    stored = adapter_weights(transformer) or transformer.weights
    weights = {path_in_model(each, transformer): each for each in stored}
    # The states of random generators are variables, but not weights.
    paths = {weight.path for weight in transformer.weights}
    states = [each for each in transformer.variables if each.path not in paths]
    return {"weights": weights, "seeds": number(states)}


def number(variables):
    """Returns variables by their numbers, which are text."""
    return {str(index): variable for index, variable in enumerate(variables)}


def path_in_model(variable, transformer):
    """Returns the path of a model's variable, without the names of outer models."""
    # The names of outer models differ between processes.
    return variable.path.removeprefix(f"{transformer.path}/")
