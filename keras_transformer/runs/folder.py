"""Locks and checks run folders: one process at a time, one recipe, one training text.

`train` calls `create_and_lock`, `refuse_other_files`, `clean` and `claim`, and after
restoring a checkpoint, `check_unchanged`.
"""

import contextlib
import logging
import os
import pathlib
import re
import shutil

import filelock

from keras_transformer.errors import (
    RecipeError,
    RunBusyError,
    RunError,
    UserError,
    WorkerLostError,
)
from keras_transformer.files import check_writable
from keras_transformer.recipes import dump_recipe, load_recipe
from keras_transformer.recipes.keys import changed_keys, describe_changes
from keras_transformer.recipes.schema import ARCHITECTURE
from keras_transformer.saving.checkpoints import refuse_lost_checkpoints
from keras_transformer.saving.names import (
    ADAPTERS,
    BASE_MODEL,
    BEST_MODEL,
    CONFIG,
    CURVES,
    DISTILLED,
    METRICS,
    MODEL,
    SAVED,
    TOKENIZER,
    checkpoint_paths,
)

logger = logging.getLogger(__name__)

_LOCK = ".lock"
_CHECKPOINTS = "checkpoints"
# Output of a run, except `cache`, whose encoded text is rewritten if the text or the
# vocabulary has changed.
_OUTPUT = (
    *(TOKENIZER, _CHECKPOINTS, "logs", METRICS, BASE_MODEL, BEST_MODEL, MODEL),
    *(ADAPTERS, CURVES),
)
# Folders that a run writes to.
_FOLDERS = (
    *(TOKENIZER, _CHECKPOINTS, "logs", "logs/train", "logs/validation"),
    *("cache", "cache/train", "cache/validation"),
    *(f"{TOKENIZER}/source", f"{TOKENIZER}/target"),
)
# Names of files and folders that a killed process leaves incomplete (see
# `files.temporary_name`).
_LEFTOVER = re.compile(r"\..+-\d+-[0-9a-f]{8}(\.\w+|-old)?")
# Recipe keys that may change when a run resumes.
_CHANGEABLE_KEYS = {
    "training": {
        *("steps", "best_metric", "early_stopping", "on_nonfinite"),
        *("max_consecutive_skips", "skip_above_gradient_norm"),
    },
    "decoding": True,
}
# Keys that may not change even with `allow_changes`, since checkpoints would not fit.
_FIXED_KEYS = {
    *(f"model.{name}" for name in ARCHITECTURE),
    *(f"tokenizer.{name}" for name in ("kind", "vocabulary_size", "split_digits")),
    *("tokenizer.shared", "tokenizer.source_vocabulary_size"),
    *("training.optimizer", "training.ema_momentum", "training.lora"),
}
# Keys with files that are read only at the start of a run. They may be moved later.
_START_KEYS = ("tokenizer.model", "tokenizer.source_model", "training.initial_model")


@contextlib.contextmanager
def create_and_lock(folder, lock_name=_LOCK, runs=()):
    """Creates and locks a run folder inside the context.

    If a `UserError` is raised inside the context before a training step is logged or
    saved, also in any of `runs`, the run folders inside `folder`, the context removes
    the output that did not exist at the start, and empty folders that it created.
    """
    folder = pathlib.Path(folder)
    created = [each for each in (folder, *folder.parents) if not each.exists()]
    check_writable(folder)
    output = [folder / name for name in (*_OUTPUT, "cache", CONFIG, lock_name)]
    existing = {path for path in output if os.path.lexists(path)}
    with lock(folder, lock_name):
        try:
            yield
        except WorkerLostError:
            raise  # all workers will restart, so the output stays
        except UserError:
            runs = [folder, *map(pathlib.Path, runs)]
            if not any(has_begun(run) or (run / METRICS).exists() for run in runs):
                for path in output:
                    if path not in existing:
                        _remove(path)
                for each in created:
                    # The folder may contain other files.
                    with contextlib.suppress(OSError):
                        each.rmdir()
            raise


@contextlib.contextmanager
def lock(folder, name=_LOCK):
    """Locks a run folder for this process inside the context, or raises `RunBusyError`.

    The operating system also releases the lock if the process is killed. Lock files of
    different names are independent.
    """
    try:
        acquired = filelock.FileLock(folder / name, timeout=0).acquire()
    except filelock.Timeout:
        raise RunBusyError(
            f"{folder}: in use by another process. Wait for it to end"
        ) from None
    except OSError as error:  # a link or a folder
        raise RunError(f"{folder / name}: {error.strerror}. Remove it") from None
    with acquired:
        yield


def check_outputs(folder):
    """Checks that no output of a run is a link, since writing would follow it."""
    caches = sorted((folder / "cache").glob("train-*"))
    for path in (*(folder / name for name in (*_FOLDERS, METRICS)), *caches):
        kind = "file" if path == folder / METRICS else "folder"
        if path.is_symlink():
            raise RunError(
                f"{path}: must be a {kind} in the run, not a symbolic link. Replace it "
                "or start over with `restart`"
            )
        is_kind = path.is_file() if kind == "file" else path.is_dir()
        if path.exists() and not is_kind:
            raise RunError(f"{path}: must be a {kind}. Remove it")


def refuse_other_files(folder):
    """Checks that a folder is a run, or contains no files but those of its start.

    These are hidden files, logs that a shell or a scheduler has opened, and the text of
    `distill`.
    """
    if (
        has_begun(folder)
        or any((folder / name).is_file() for name in (CONFIG, MODEL))
        or (folder / _CHECKPOINTS / SAVED).is_file()
    ):
        return
    names = sorted(path.name for path in folder.iterdir())
    own = rf"\..*|.*\.(log|out|err)|{DISTILLED}"
    others = [name for name in names if not re.fullmatch(own, name)]
    if others:
        shown = ", ".join([*others[:3], *["..."] * (len(others) > 3)])
        raise RunError(
            f"{folder}: contains files but no run ({shown}). Choose a new or an empty "
            "folder as `output`"
        )


def check_restart(folder, recipe):
    """Checks that a restart in `folder` does not delete files that the recipe reads."""
    tokenizer = recipe.tokenizer
    for what, path in (
        ("initial model", recipe.training.initial_path),
        ("tokenizer", tokenizer.model),
        ("tokenizer", tokenizer.source_model),
    ):
        if path and pathlib.Path(path).resolve().is_relative_to(folder.resolve()):
            raise RunError(
                f"{path}: `restart` would remove this {what}. Choose another `output`"
            )


def clean(folder, restart=False):
    """Removes files that a killed process left incomplete.

    If `restart` is true, removes all output of the run, including its vocabulary.
    """
    for name in _OUTPUT if restart else ():
        _remove(folder / name)
    check_outputs(folder)
    for path in list(folder.rglob(".*")):
        if _LEFTOVER.fullmatch(path.name):
            _remove(path)


def has_begun(folder):
    """Returns whether the run has a checkpoint."""
    return bool(checkpoint_paths(folder / _CHECKPOINTS))


def claim(folder, recipe, allow_changes=False):
    """Writes the recipe into the folder, unless the folder contains another run.

    If the run resumes with changes, the caller writes the recipe, once the checkpoint
    is restored. If that fails, the folder still describes the run. With
    `allow_changes`, the recipe may differ from the one in the folder, except in the
    architecture, vocabulary and optimizer, or replace a damaged one.
    """
    check_writable(folder / _CHECKPOINTS)
    path = folder / CONFIG
    begun = has_begun(folder)
    was_run = begun or (folder / _CHECKPOINTS / SAVED).is_file()
    if (folder / MODEL).is_file() and not was_run:
        raise RunError(
            f"{folder / MODEL}: the checkpoints of this model are missing, so training "
            "cannot resume and would replace it. Choose another `output`. To start "
            "from the weights of this model, set training.initial_model to "
            f"{folder}"
        )
    # Restored checkpoints need their recipe and vocabulary, which are replaced below.
    refuse_lost_checkpoints(folder / _CHECKPOINTS)
    if path.is_file():
        old = _stored_recipe(path, allow_changes)
        # A damaged recipe counts as changed.
        changed = {} if old is None else changed_keys(old, recipe, _CHANGEABLE_KEYS)
        if begun:
            if changed and not allow_changes:
                raise RunError(
                    f"{folder} contains a run with a different recipe "
                    f"({describe_changes(changed)}). Choose another `output`, pass "
                    "`allow_changes`, or start over with `restart`"
                )
            if old is not None:
                _check_fixed_keys(folder, changed, old.training, recipe.training)
                if changes := changed_keys(old, recipe):
                    logger.info("changed settings: %s", describe_changes(changes))
                _warn_of_cooldown(folder, old.training, recipe.training)
            if unused := [key for key in changed if key in _START_KEYS]:
                logger.warning(
                    f"{folder}: a run reads {' and '.join(unused)} only at its start, "
                    "so the change has no effect"
                )
            if changed or old is None:
                return
        elif changed or old is None:
            # The vocabulary of a failed start may belong to different text.
            _remove(folder / TOKENIZER)
    dump_recipe(recipe, path)


def _check_fixed_keys(folder, changed, old, new):
    """Raises `RunError` if the checkpoints do not fit the changed keys."""
    fixed = [key for key in changed if key in _FIXED_KEYS]
    precisions = {old.mixed_precision, new.mixed_precision}
    # Only float16 adds a loss scale to the checkpoints.
    if "float16" in precisions and len(precisions) == 2:
        fixed.append("training.mixed_precision")
    if fixed:
        raise RunError(
            f"{folder} contains a run whose checkpoints do not fit these changes: "
            f"{describe_changes({key: changed[key] for key in fixed})}. Choose another "
            "`output`, or start over with `restart`"
        )


def _warn_of_cooldown(folder, old, new):
    """Warns if more steps raise a learning rate that has already begun to fall to 0."""
    steps = [*checkpoint_paths(folder / _CHECKPOINTS)]
    if new.stages or not old.cooldown_steps or not steps:
        return
    step = steps[-1]
    began, begins = (each.steps - each.cooldown_steps for each in (old, new))
    if step > began and begins > began:
        logger.warning(
            f"{folder}: the cooldown began after step {began:,}. With "
            f"training.steps={new.steps:,}, it begins after step {begins:,}, so the "
            "learning rate rises again"
        )


def _stored_recipe(path, allow_changes):
    """Returns the run's recipe, or `None` if it is damaged and changes are allowed."""
    try:
        return load_recipe(path)
    except RecipeError as error:
        if allow_changes:
            logger.warning("%s: damaged, replaced by the given recipe", path)
            return None
        raise RunError(
            f"{error}. The run's recipe must be readable to compare it with the given "
            f"one. Restore {path}, or delete it to use the given recipe"
        ) from None


def check_unchanged(
    folder,
    progress,
    allow_changes,
    *,
    text,
    replicas,
    validation_text=None,
    validation_settings=None,
):
    """Checks that the inputs of a resumed run are unchanged.

    The texts are given by their fingerprints, or `None` if these are unknown. Each
    replica draws its own dropout masks. If the validation text or its settings have
    changed, the best score is discarded, because new scores cannot be compared with it.
    The restored `progress` stores the new values.
    """
    problems = {
        "text": "the text of data.train, its length limit or its subwords have changed "
        "since the run began",
        "validation_text": "the text of data.validation or its subwords have changed "
        "since the run began, so new scores cannot be compared with old ones",
        "replicas": f"the run began on {progress.replicas} replica(s). Now there are "
        f"{replicas}",
    }
    values = {"text": text, "replicas": replicas}
    if validation_text is not None:
        values["validation_text"] = validation_text
        values["validation_settings"] = validation_settings
    changed = [
        name
        for name, value in values.items()
        if None not in (value, before := getattr(progress, name)) and value != before
    ]
    for name, problem in problems.items():
        if name in changed and not allow_changes:
            raise RunError(
                f"{folder}: {problem}. Pass `allow_changes`, or start over with "
                "`restart`"
            )
    for name, what in (
        ("validation_text", "data.validation has"),
        ("validation_settings", "settings of validation have"),
    ):
        if name in changed:
            logger.warning("%s changed, so the best score is discarded", what)
            progress.discard_best()
    for name, value in values.items():
        setattr(progress, name, value)


def _remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
