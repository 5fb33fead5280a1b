"""Checkpoints that store the full training state."""

import json
import logging
import pathlib
from typing import Any

import numpy as np

from keras_transformer.errors import CheckpointError
from keras_transformer.files import replace_file, replace_text
from keras_transformer.saving.checkpoints import (
    CheckpointFile,
    Damage,
    number,
    path_in_model,
    refuse_lost_checkpoints,
    regular_paths,
    variables_by_name,
    warn_of_damage,
)
from keras_transformer.saving.names import SAVED, checkpoint_paths
from keras_transformer.training.moving_average import MovingAverage

logger = logging.getLogger(__name__)


class Checkpoints:
    """Writes and restores `folder/ckpt-STEP.npz`.

    A checkpoint contains the weights, their moving average if there is one, the
    optimizer's slots and step, the states of the random generators for dropout, and the
    run's progress. It is complete and on disk before an older one is deleted. A
    checkpoint that was written on one backend is restored on another.

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
        self._groups = _variables_by_name(model)
        self._keep = keep
        self._writes = writes
        self._damaged = set()

    def save(self, step, progress):
        """Writes the checkpoint of `step` and deletes those that are no longer kept.

        `progress` is a mapping with JSON values, which `restore` returns. If the disk
        is full, older checkpoints are unchanged, and so is one of the same step.
        """
        if not self._writes:
            return
        arrays = {
            f"{group}/{name}": variable.numpy()
            for group, variables in self._groups.items()
            for name, variable in variables.items()
        }
        arrays["progress"] = np.frombuffer(json.dumps(progress).encode(), "uint8")
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"ckpt-{step}.npz"
        with replace_file(path) as temporary:
            np.savez(temporary, **arrays)
        replace_text(self.folder / SAVED, json.dumps({"step": step}))
        self._damaged.discard(path)
        self._delete_old(step, self._damaged)
        self._damaged.clear()

    def _delete_old(self, step, delete_too=()):
        """Deletes checkpoints that are no longer kept, and the paths in `delete_too`.

        `step` is the step of the newest checkpoint.
        """
        # A checkpoint newer than `step` is damaged, unless training started without
        # `restore`. Then an earlier run wrote it, so it is kept.
        readable = [
            path
            for number, path in checkpoint_paths(self.folder).items()
            if path not in self._damaged and number <= step
        ]
        kept = {*regular_paths(readable)[-self._keep :], *readable[-1:]}
        for path in (*delete_too, *(each for each in readable if each not in kept)):
            path.unlink(missing_ok=True)

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
        for path in reversed(paths.values()):
            try:
                with CheckpointFile(path) as file:
                    progress = file.read_progress(schema)
                    values = self._read(file)
            except Damage as error:
                warn_of_damage(path, error)
                self._damaged.add(path)
                continue
            for variable, value in values:
                variable.assign(value)
            return progress
        if paths:
            raise CheckpointError(
                f"{self.folder}: no readable checkpoint. Restore one, or start over "
                "with `restart`"
            )
        refuse_lost_checkpoints(self.folder)
        return None

    def _read(self, file):
        """Returns pairs of a variable and its stored value."""
        values = []
        for group, variables in self._groups.items():
            stored = {*file.names(group)}
            if group in ("seeds", "training_seeds"):
                # A run that resumes with other regularization may need more random
                # generators. The new ones keep their initial states.
                variables = {n: each for n, each in variables.items() if n in stored}
            elif group == "optimizer" and stored != {*variables}:
                raise CheckpointError(
                    f"{file.path}: does not match the model: another optimizer wrote "
                    "it. Set training.optimizer and training.lora as before, or start "
                    "over with `restart`"
                )
            else:
                file.check(group, variables)
            values += [
                (variable, file.read(f"{group}/{name}", variable))
                for name, variable in variables.items()
            ]
        return values


def _variables_by_name(model):
    """Returns the variables of a `TrainingModel` by group and name."""
    transformer = model.transformer
    groups = variables_by_name(transformer)
    averages = {
        path_in_model(weight, transformer): average
        for weight, average in MovingAverage(model).pairs()
    }
    # The averages have the names of their weights, not those of slots.
    paths = {average.path for average in averages.values()}
    # The name of a slot begins with the path of its weight. `LossScaleOptimizer` has a
    # step and a learning rate of its own, which it does not use.
    outer = transformer.path.replace("/", "_")
    slots = {
        variable.name.removeprefix(f"{outer}_"): variable
        for variable in model.optimizer.variables
        if variable.path not in paths
    }
    return {
        **groups,
        "training_seeds": number(model.random_states()),
        "averages": averages,
        "optimizer": slots,
    }
