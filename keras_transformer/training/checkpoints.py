"""Checkpoints that store the full training state."""

import json
import logging
import pathlib
from typing import Any

import tensorflow as tf

from keras_transformer.errors import CheckpointError
from keras_transformer.files import (
    convert_disk_full_errors,
    remove_tree,
    replace_file,
)
from keras_transformer.saving.checkpoints import (
    DAMAGE,
    check_shapes,
    checkpoint_files,
    path_in_model,
    refuse_lost_checkpoints,
    regular_paths,
    warn_of_damage,
    weights_by_path,
)
from keras_transformer.saving.names import SAVED, checkpoint_paths
from keras_transformer.training.moving_average import MovingAverage
from keras_transformer.untrusted import parse_json, require_regular

logger = logging.getLogger(__name__)

# File in which TensorFlow lists checkpoints.
STATE = "checkpoint"
# Beginning of the names of checkpoints that are being written.
_TEMPORARY = ".new-"


class _DamagedProgress(Exception):
    """The progress in a checkpoint cannot be read."""


class Checkpoints:
    """Writes and restores `folder/ckpt-STEP`.

    A checkpoint contains the weights, their moving average if there is one, the
    optimizer's slots and step, the states of the random generators for dropout, and the
    run's progress. It is complete and on disk before an older one is deleted.

    A run keeps the newest `keep` regular checkpoints: those written on schedule or at
    the end of the run (see `regular_paths`). A checkpoint that is written at an
    interruption is kept until the next checkpoint is written.

    Args:
        model: A built and compiled `TrainingModel`.
        folder: Folder of the checkpoints.
        keep: Number of regular checkpoints to keep.
        writes: Whether this process writes checkpoints. Only one worker does.

    Raises:
        ValueError: If `keep` is below 1.
    """

    def __init__(self, model, folder, keep=5, writes=True):
        if keep < 1:
            raise ValueError(f"`keep` must be at least 1. Received: {keep}.")
        model.optimizer.build(model.trainable_variables)
        self.folder = pathlib.Path(folder)
        self._progress = tf.Variable("", trainable=False, dtype=tf.string)
        weights = weights_by_path(model.transformer)
        states = {str(index): each for index, each in enumerate(model.random_states())}
        # States of random generators, by group and index.
        self._seeds = {"seeds": weights["seeds"], "training_seeds": states}
        self._state = {"weights": weights["weights"], "progress": self._progress}
        averages = {
            path_in_model(weight, model.transformer): average
            for weight, average in MovingAverage(model).pairs()
        }
        if averages:
            self._state["averages"] = {
                path: average.value for path, average in averages.items()
            }
        # The averages are stored under the names of their weights, not as slots.
        paths = {average.path for average in averages.values()}
        slots = [each for each in model.optimizer.variables if each.path not in paths]
        self._state["optimizer"] = [variable.value for variable in slots]
        self._keep = keep
        self._writes = writes
        self._damaged = set()

    def save(self, step, progress):
        """Writes the checkpoint of `step` and deletes those that are no longer kept.

        `progress` is a mapping with JSON values, which `restore` returns. If the disk
        is full, older checkpoints are unchanged.
        """
        if not self._writes:
            return
        self._progress.assign(json.dumps(progress))
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"ckpt-{step}"
        with convert_disk_full_errors(path):
            self._write(path)
            with replace_file(self.folder / SAVED) as temporary:
                temporary.write_text(json.dumps({"step": step}), encoding="utf-8")
            self._damaged.discard(str(path))
            self._delete_old(step, self._damaged)
            self._damaged.clear()

    def _write(self, path):
        """Writes a checkpoint. After an error, one of the same step is unchanged."""
        written = path.with_name(f"{_TEMPORARY}{path.name}")
        groups = {name: states for name, states in self._seeds.items() if states}
        try:
            tf.train.Checkpoint(**self._state, **groups).write(str(written))
            # The index comes last, because a checkpoint counts only with its index.
            for file in sorted(self.folder.glob(f"{written.name}.*")):
                target = file.with_name(file.name.removeprefix(_TEMPORARY))
                with replace_file(target) as temporary:
                    file.replace(temporary)
        finally:
            for file in self.folder.glob(f"{written.name}*"):
                remove_tree(file)

    def _delete_old(self, step, delete_too=()):
        """Deletes checkpoints that are no longer kept, and the paths in `delete_too`.

        `step` is the step of the newest checkpoint.
        """
        # A checkpoint newer than `step` is damaged, unless training started without
        # `restore`. Then an earlier run wrote it, so it is kept, but not listed in the
        # state file.
        readable = [
            path
            for path in checkpoint_paths(self.folder)
            if path not in self._damaged and int(path.rpartition("-")[2]) <= step
        ]
        kept = {*regular_paths(readable)[-self._keep :], *readable[-1:]}
        self._write_state_file([path for path in readable if path in kept])
        for path in (*delete_too, *(each for each in readable if each not in kept)):
            # The index is deleted first, because data files without one do not count
            # as a checkpoint.
            pathlib.Path(f"{path}.index").unlink(missing_ok=True)
            for file in self.folder.glob(f"{pathlib.Path(path).name}.*"):
                file.unlink(missing_ok=True)

    def finish_rotation(self, step):
        """Deletes old checkpoints that a killed process left before that of `step`."""
        if self._writes:
            self._delete_old(step)

    def restore(self, schema=dict[str, Any]):
        """Restores the newest readable checkpoint. Changes no file.

        Args:
            schema: Type to which the progress is converted (see `parse_json`).

        Returns:
            The progress that was passed to `save`, or `None` if no checkpoint was ever
            written.

        Raises:
            CheckpointError: If checkpoints exist but none can be read, if the newest
                readable one does not match the model, or if all were lost.
        """
        paths = checkpoint_paths(self.folder)
        for path in reversed(paths):
            try:
                require_regular(checkpoint_files(path), CheckpointError)
                seeds = self._stored_seeds(path)
                checkpoint = tf.train.Checkpoint(**self._state, **seeds)
                check_shapes(checkpoint, path)
                checkpoint.read(path).assert_existing_objects_matched()
                # The best perplexity of a poor model may be infinite.
                stored = self._progress.numpy()
                return parse_json(
                    stored, schema, "progress", _DamagedProgress, finite=False
                )
            except (*DAMAGE, _DamagedProgress) as error:
                warn_of_damage(path, error)
                self._damaged.add(path)
            except CheckpointError:
                raise
            except (AssertionError, ValueError) as error:
                reason = str(error).strip().partition("\n")[0]
                raise CheckpointError(
                    f"{path}: does not match the model: {reason}"
                ) from None
        if paths:
            raise CheckpointError(f"{self.folder}: contains no readable checkpoint")
        refuse_lost_checkpoints(self.folder)
        return None

    def _stored_seeds(self, path):
        """Returns the groups of `_seeds` without the states that a checkpoint lacks.

        They are missing if the run was resumed with other regularization, which needs
        more random generators. The new generators keep their initial states.
        """
        stored = tf.train.load_checkpoint(path).get_variable_to_shape_map()
        groups = {
            name: {
                index: state
                for index, state in states.items()
                if f"{name}/{index}/.ATTRIBUTES/VARIABLE_VALUE" in stored
            }
            for name, states in self._seeds.items()
        }
        return {name: states for name, states in groups.items() if states}

    def _write_state_file(self, paths):
        """Writes TensorFlow's list of checkpoints, which other programs may read."""
        names = [pathlib.Path(path).name for path in paths]
        lines = [f'model_checkpoint_path: "{names[-1]}"']
        lines += [f'all_model_checkpoint_paths: "{name}"' for name in names]
        with replace_file(self.folder / STATE) as temporary:
            temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
