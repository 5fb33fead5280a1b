"""Run folders: one process at a time, one recipe, one training text."""

import contextlib
import fcntl
import logging
import os
import pathlib
import shutil

from keras_transformer.errors import RecipeError
from keras_transformer.errors import RunBusy
from keras_transformer.errors import RunError
from keras_transformer.files import check_writable
from keras_transformer.recipes import dump_recipe
from keras_transformer.recipes import load_recipe
from keras_transformer.recipes.schema import ARCHITECTURE
from keras_transformer.saving.names import CONFIG
from keras_transformer.saving.names import MODEL
from keras_transformer.saving.names import SAVED
from keras_transformer.saving.names import TOKENIZER

logger = logging.getLogger(__name__)

_LOCK = ".lock"
_CHECKPOINTS = "checkpoints"
# Output of a run, except its ids, which are rewritten if text or vocabulary differ.
_OUTPUT = (TOKENIZER, _CHECKPOINTS, "logs", "metrics.jsonl", "best.keras", MODEL)
# Files that a killed process leaves incomplete.
_LEFTOVERS = (
    *(".*-[0-9]*.keras", ".*-[0-9]*.jsonl", ".*-[0-9]*.yaml"),
    *(".probe-[0-9]*.tmp", "*/.probe-[0-9]*.tmp", "*/*.[0-9]*.tmp"),
    *(f"{_CHECKPOINTS}/ckpt-*_temp", f"{_CHECKPOINTS}/ckpt-*.tempstate*"),
    *(f"{_CHECKPOINTS}/.saved-[0-9]*.json", f"{_CHECKPOINTS}/.checkpoint-[0-9]*"),
)
# Keys that may change between two starts: length of training, and decoding.
_FREE = {
    "training": {
        *("steps", "early_stopping", "on_nonfinite", "max_consecutive_skips"),
        "max_gradient_norm",
    },
    "decoding": True,
}
# Keys that determine whether checkpoints fit.
_FIXED = {
    *(f"model.{name}" for name in ARCHITECTURE),
    *(f"tokenizer.{name}" for name in ("kind", "vocabulary_size", "split_digits")),
}


def create(folder):
    """Creates the folder and checks that it is writable.

    Raises:
        StorageError: If the folder is not writable.
    """
    for each in (folder, folder / _CHECKPOINTS):
        check_writable(each)


@contextlib.contextmanager
def lock(folder, name=_LOCK):
    """Locks a run folder for this process inside the context.

    The operating system releases the lock if the process ends earlier.

    Args:
        folder: The run folder.
        name: Name of the lock file. Different lock files are independent.

    Raises:
        RunBusy: If another process has locked the folder.
    """
    with open(folder / name, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            raise RunBusy(
                f"{folder}: process {owner} is already training here"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def check_restart(folder, recipe):
    """Checks that a restart in `folder` does not delete the recipe's initial model.

    Raises:
        RunError: If `training.initial_model` is the folder or inside it.
    """
    initial = recipe.training.initial_model
    if initial and pathlib.Path(initial).resolve().is_relative_to(folder.resolve()):
        raise RunError(
            f"{initial}: --restart would remove this initial model. Choose another "
            "--output"
        )


def clean(folder, restart=False):
    """Removes files that a killed process left incomplete.

    Args:
        folder: The run folder.
        restart: Whether to remove all output of the run, including its vocabulary.
    """
    for name in _OUTPUT if restart else ():
        _remove(folder / name)
    for pattern in _LEFTOVERS:
        for path in list(folder.glob(pattern)):
            _remove(path)
    # A process that is killed between writing data and index leaves only the data.
    for path in (folder / _CHECKPOINTS).glob("ckpt-*.data-*"):
        if not path.with_name(path.name.partition(".data-")[0] + ".index").exists():
            _remove(path)


def _has_begun(folder):
    return any((folder / _CHECKPOINTS).glob("ckpt-*.index"))


def claim(folder, recipe, allow_changes=False):
    """Writes the recipe into the folder, unless it contains a different run.

    Args:
        folder: The run folder.
        recipe: The recipe of the new start.
        allow_changes: Whether the recipe may differ.

    Raises:
        RunError: If the folder contains checkpoints with a different recipe, or its
            recipe is damaged. A changed architecture or vocabulary is always rejected,
            as is a finished model without checkpoints.
    """
    path = folder / CONFIG
    begun = _has_begun(folder)
    was_run = begun or (folder / _CHECKPOINTS / SAVED).is_file()
    if (folder / MODEL).is_file() and not was_run:
        raise RunError(
            f"{folder / MODEL}: the checkpoints of this model are missing, so training "
            "cannot resume and would replace it. Choose another --output; "
            f"--from {folder} starts there with its weights"
        )
    if path.is_file():
        changed = _changes(path, recipe, allow_changes)
        if changed and begun and not allow_changes:
            raise RunError(
                f"{folder} contains a run with a different recipe "
                f"({', '.join(changed)}). Choose another --output, or pass "
                "--allow-changes or --restart"
            )
        fixed = [key for key in changed if key in _FIXED]
        if fixed and begun:
            raise RunError(
                f"{folder} contains a run whose checkpoints do not fit these changes: "
                f"{', '.join(fixed)}. Choose another --output, or pass --restart"
            )
        if changed and not begun:
            # The vocabulary of a failed start may belong to different text.
            _remove(folder / TOKENIZER)
    dump_recipe(recipe, path)


def check_text(folder, progress, fingerprint, allow_changes=False):
    """Checks that the training text is unchanged and stores its fingerprint.

    Args:
        folder: The run folder.
        progress: The restored `Progress`, which is updated.
        fingerprint: `EncodedCorpus.fingerprint`.
        allow_changes: Whether the text may differ.

    Raises:
        RunError: If the run began with a different text.
    """
    known = progress.text is not None and fingerprint is not None
    now = fingerprint
    if known and ":" not in progress.text:
        now = now.partition(":")[0]  # version 0.1 stored no hash of the ids
    if known and progress.text != now and not allow_changes:
        raise RunError(
            f"{folder}: the text of data.train, its length limit or its subwords have "
            "changed since the run began. Pass --allow-changes or --restart"
        )
    progress.text = fingerprint


def check_replicas(folder, progress, replicas, allow_changes=False):
    """Checks that the number of replicas is unchanged and stores it.

    Each replica draws its own dropout masks, so their number changes the weights. The
    arguments match `check_text`.

    Raises:
        RunError: If the run began with a different number.
    """
    changed = progress.replicas not in (None, replicas)
    if changed and not allow_changes:
        raise RunError(
            f"{folder}: the run began on {progress.replicas} replica(s). Now there are "
            f"{replicas}. Pass --allow-changes or --restart"
        )
    progress.replicas = replicas


def _changes(path, recipe, allow_changes):
    """Returns the keys whose values in the run's recipe at `path` differ.

    Raises:
        RunError: If the run's recipe is damaged, unless changes are allowed.
    """
    try:
        old = load_recipe(path)
    except RecipeError as error:
        if allow_changes:
            logger.warning("%s: damaged, replaced by the given recipe", path)
            return ["all keys"]
        raise RunError(
            f"{error}. The run's recipe must be readable to compare it with the given "
            f"one. Restore {path}, or delete it to use the given recipe"
        ) from None
    return [*_changed_keys(old, recipe)]


def _changed_keys(old, new):
    old, new = (recipe.model_dump(exclude=_FREE) for recipe in (old, new))
    for section in old:
        before, after = old[section] or {}, new[section] or {}
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                yield f"{section}.{key}"


def _remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
