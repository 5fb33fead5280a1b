"""A run's folder: one process at a time, one recipe, one text."""

import contextlib
import fcntl
import os
import pathlib
import shutil

from keras_transformer.errors import RunBusy
from keras_transformer.errors import RunError
from keras_transformer.files import check_writable
from keras_transformer.recipes import dump_recipe
from keras_transformer.recipes import load_recipe
from keras_transformer.recipes.schema import ARCHITECTURE
from keras_transformer.saving.names import CONFIG
from keras_transformer.saving.names import MODEL
from keras_transformer.saving.names import TOKENIZER

_LOCK = ".lock"
_CHECKPOINTS = "checkpoints"
# In it; tells that there were checkpoints, even when all are gone.
SAVED = "saved.json"
# What a run makes; its ids are made anew by themselves where text or vocabulary differ.
_MADE = (TOKENIZER, _CHECKPOINTS, "logs", "metrics.jsonl", "best.keras", MODEL)
# How long to train and how to decode may change between two starts.
_FREE = {
    "training": {
        *("steps", "early_stopping", "on_nan", "max_skipped", "max_gradient_norm"),
    },
    "decoding": True,
}
# What checkpoints fit no more when it has changed.
_FIXED = {
    *(f"model.{name}" for name in ARCHITECTURE),
    *(f"tokenizer.{name}" for name in ("kind", "vocabulary_size", "split_digits")),
}


def prepare(folder):
    """Makes the folder and makes sure that it can be written to.

    Raises:
        StorageError: it cannot.
    """
    for each in (folder, folder / _CHECKPOINTS):
        check_writable(each)


@contextlib.contextmanager
def locked(folder, name=_LOCK):
    """Keeps other processes out of a run's folder; ends with the process at the latest.

    Args:
        folder: The run's.
        name: Of the file that is locked: who locks another one is not kept out.

    Raises:
        RunBusy: another process has it.
    """
    with open(folder / name, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            raise RunBusy(
                f"{folder}: another process trains here (process {owner})"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def check_restart(folder, recipe):
    """Refuses to remove what a run is to begin with.

    Args:
        folder: The run's, all that it has made about to be removed.
        recipe: The new start's.

    Raises:
        RunError: `training.initial_model` is or lies in the folder.
    """
    initial = recipe.training.initial_model
    if initial and pathlib.Path(initial).resolve().is_relative_to(folder.resolve()):
        raise RunError(
            f"{initial}: training is to begin with it, and --restart would remove it. "
            "Choose another --output"
        )


def clean(folder, restart=False):
    """Removes what a killed process left half-written.

    Args:
        folder: The run's.
        restart: Whether to remove all that the run has made, with its vocabulary.
    """
    for name in _MADE if restart else ():
        _remove(folder / name)
    leftovers = [
        *folder.glob(".*-[0-9]*.keras"),
        *folder.glob(".*-[0-9]*.jsonl"),
        *folder.glob(".probe-[0-9]*.tmp"),
        *folder.glob("*/.probe-[0-9]*.tmp"),
        *folder.glob("*/*.[0-9]*.tmp"),
        *(folder / _CHECKPOINTS).glob("ckpt-*_temp"),
        *(folder / _CHECKPOINTS).glob("ckpt-*.tempstate*"),
        *(folder / _CHECKPOINTS).glob(".saved-[0-9]*.json"),
        *(folder / _CHECKPOINTS).glob(".checkpoint-[0-9]*"),
    ]
    for path in leftovers:
        _remove(path)
    # Data without an index: killed between the two.
    for path in (folder / _CHECKPOINTS).glob("ckpt-*.data-*"):
        if not path.with_name(path.name.partition(".data-")[0] + ".index").exists():
            _remove(path)


def _has_begun(folder):
    return any((folder / _CHECKPOINTS).glob("ckpt-*.index"))


def claim(folder, recipe, allow_changes=False):
    """Writes the recipe into the folder, unless a run of another recipe is there.

    Args:
        folder: The run's.
        recipe: The new start's.
        allow_changes: Whether it may differ.

    Raises:
        RunError: the folder holds checkpoints of another recipe, or, even where it may
            differ, of a model or vocabulary of another shape; or a finished model and
            nothing to go on from.
    """
    path = folder / CONFIG
    was_run = _has_begun(folder) or (folder / _CHECKPOINTS / SAVED).is_file()
    if (folder / MODEL).is_file() and not was_run:
        raise RunError(
            f"{folder / MODEL}: an average of checkpoints that are not here; training "
            "cannot go on from it, and would replace it. Choose another --output; "
            f"--from {folder} begins there with its weights"
        )
    if path.is_file():
        changed = [*_changed_keys(load_recipe(path), recipe)]
        begun = _has_begun(folder)
        if changed and begun and not allow_changes:
            raise RunError(
                f"{folder}: holds a run of another recipe; what differs: "
                f"{', '.join(changed)}. "
                "Choose another --output, or give --allow-changes or --restart"
            )
        fixed = [key for key in changed if key in _FIXED]
        if fixed and begun:
            raise RunError(
                f"{folder}: holds a run whose checkpoints do not fit these changes: "
                f"{', '.join(fixed)}. Choose another --output, or give --restart"
            )
        if changed and not begun:
            # A start that came to nothing; its vocabulary may be of other text.
            _remove(folder / TOKENIZER)
    dump_recipe(recipe, path)


def check_text(folder, progress, fingerprint, allow_changes=False):
    """Notes the training text in `progress`, unless the run began with another.

    Args:
        folder: The run's.
        progress: `training.Progress` as restored.
        fingerprint: Of the encoded text. None: it cannot be told.
        allow_changes: Whether another text will do.

    Raises:
        RunError: the run began with another text.
    """
    known = progress.text is not None and fingerprint is not None
    if known and progress.text != fingerprint and not allow_changes:
        raise RunError(
            f"{folder}: the text of data.train, its length limit or its sub-words have "
            "changed since the run began. Give --allow-changes or --restart"
        )
    progress.text = fingerprint


def check_replicas(folder, progress, replicas, allow_changes=False):
    """Notes in `progress` how many replicas compute a step, as `check_text` does.

    Each replica draws its own dropout, so that another number of them gives other
    weights.

    Raises:
        RunError: the run began with another number.
    """
    changed = progress.replicas not in (None, replicas)
    if changed and not allow_changes:
        raise RunError(
            f"{folder}: the run began on {progress.replicas} replica(s), here are "
            f"{replicas}. Give --allow-changes or --restart"
        )
    progress.replicas = replicas


def _changed_keys(old, new):
    old, new = (recipe.model_dump(exclude=_FREE) for recipe in (old, new))
    for section in old:
        for key in sorted({*(old[section] or {}), *(new[section] or {})}):
            if (old[section] or {}).get(key) != (new[section] or {}).get(key):
                yield f"{section}.{key}"


def _remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
