"""Training with several seeds, and a report of the mean scores and their spread."""

import contextlib
import functools
import os
import pathlib
import subprocess
import sys
import time
from typing import Annotated

from pydantic import BaseModel, Field, NonNegativeInt

from keras_transformer import evaluation
from keras_transformer.errors import (
    DataError,
    RecipeError,
    RunError,
    UserError,
    require_backend,
)
from keras_transformer.files import replace_text
from keras_transformer.machine import find_cores
from keras_transformer.recipes import dump_recipe, load_recipe
from keras_transformer.recipes.keys import changed_keys, describe_changes
from keras_transformer.runs import folder as run_folder
from keras_transformer.runs.corpora import load_scored_pairs
from keras_transformer.runs.report import (
    RESULT,
    read_result,
    write_result,
    write_seeds,
)
from keras_transformer.runs.validation import score_model
from keras_transformer.saving.names import (
    CONFIG,
    REPORT,
    read_final_scores,
    read_metrics,
)
from keras_transformer.training import allocate_gpu_memory_on_demand
from keras_transformer.untrusted import MAX_LOG_BYTES, read_json, read_text

TRANSLATIONS = "test.txt"
SOURCES = "sources.txt"
REFERENCES = "references.txt"
LOG = "train.log"


class _Seed(BaseModel):
    seed: NonNegativeInt


class _Report(BaseModel):
    """The part of `results.json` that `read_translations` needs."""

    seeds: Annotated[list[_Seed], Field(min_length=1)]


class _SeedResult(_Seed):
    """Content of `result.json`."""

    bleu: float
    bleu_interval: list[float]
    chrf: float
    perplexity: float | None  # `None` if it is infinite, as for a diverged model
    # Scores of the final model, if there are any.
    validation_bleu: float | None
    validation_perplexity: float | None
    parameters: NonNegativeInt
    seconds: float
    signatures: list[str]


def repeat(recipe, seeds, output, jobs=1, on_seed=None):
    """Trains a recipe once per seed and writes a report.

    Each model is scored on the test set. The report also has its validation scores,
    which training computes at the end. Finished seeds are not trained again, and
    interrupted ones resume. Each seed trains in a separate process. `jobs` processes
    run in parallel and share the cores. Their output goes to `train.log` in the seed's
    folder, but a single process shows its progress if standard error is a terminal. On
    GPUs, the calling process allocates memory as needed, so that the others have the
    rest.

    Args:
        recipe: A `Recipe` with test data.
        seeds: List of distinct ints.
        output: Folder of the runs, `seed-1` and so on, and of the report:
            `results.json`, `results.md` and `results.png`.
        jobs: Number of seeds that are trained in parallel, at most one per core.
        on_seed: Function that is called with the result of each newly trained seed.

    Returns:
        List of the results, one mapping per seed with the keys of its `result.json`.

    Raises:
        DataError: If the test set cannot be read or has no usable pair, or has changed
            since a finished seed was scored.
        RecipeError: If there is no test data, the data are trees, or `output` contains
            another recipe.
        RunBusyError: If another process runs `repeat` in `output`.
        RunError: If the training of a seed fails.
        UserError: If there are fewer cores than `jobs`.

    Examples:
        >>> recipe = kt.recipes.load_recipe("phrases", ["training.steps=1500"])
        >>> results = kt.runs.repeat(recipe, [1, 2, 3], "runs/seeds")
    """
    require_backend("training of several runs", "tensorflow")
    output = pathlib.Path(output)
    cores = find_cores()
    if jobs > cores:
        raise UserError(f"`jobs` {jobs}: must be at most the number of cores, {cores}")
    if recipe.data.kind == "trees":
        raise RecipeError(
            "`repeat` cannot be used with data.kind: trees. Use `train` once per seed, "
            "with training.seed"
        )
    if getattr(recipe.data, "test", True) is None:
        raise RecipeError("data.test must be given, to score the models on it")
    # This process evaluates each seed before the next one trains in another process,
    # which needs most of the GPU's memory.
    allocate_gpu_memory_on_demand()
    folders = {seed: output / f"seed-{seed}" for seed in seeds}
    with run_folder.create_and_lock(output, ".repeat.lock", folders.values()):
        _store_or_check_recipe(output, recipe)
        results = {
            seed: read_result(folder, _SeedResult) for seed, folder in folders.items()
        }
        pending = [seed for seed, result in results.items() if result is None]
        # Errors in the test set are reported before the training.
        test_pairs = load_scored_pairs(recipe, "test")
        finished = [folders[seed] for seed in seeds if seed not in pending]
        _check_test_text(finished, test_pairs)
        trained = _train_all(output / CONFIG, folders, pending, jobs)
        with contextlib.closing(trained):
            for seed in trained:
                results[seed] = _evaluate(recipe, test_pairs, seed, folders[seed])
                if on_seed is not None:
                    on_seed(results[seed])
        ordered = [results[seed] for seed in seeds]
        write_seeds(ordered, output)
    return ordered


def read_translations(output):
    """Returns the translations of `repeat`, a list per seed, and the references."""
    path = output / REPORT
    if not path.is_file():
        raise RunError(f"{output}: contains no results.json. Run `repeat` first")
    report = read_json(path, _Report, error=RunError)
    folders = [output / f"seed-{each.seed}" for each in report.seeds]
    references = _read_lines(folders[0] / REFERENCES)
    translations = [_read_lines(folder / TRANSLATIONS) for folder in folders]
    for folder, lines in zip(folders, translations, strict=True):
        if len(lines) != len(references):
            raise RunError(
                f"{folder / TRANSLATIONS}: must have one line per reference. Received: "
                f"{len(lines)} lines and {len(references)} references. Delete "
                f"{folder / RESULT} and run `repeat` again"
            )
        if _read_lines(folder / REFERENCES) != references:
            raise DataError(
                f"{folders[0] / REFERENCES} and {folder / REFERENCES}: must be equal, "
                f"but the test set changed between these seeds. Delete {RESULT} of the "
                "older one and run `repeat` again"
            )
    return translations, references


def read_evaluation_settings(output):
    """Reads the section `evaluation` of the recipe in an output folder of `repeat`."""
    path = output / CONFIG
    if not path.is_file():
        raise RunError(
            f"{path}: no such file, so the settings of BLEU are unknown. Run `repeat` "
            "again with the same recipe, which writes it"
        )
    return load_recipe(path).evaluation.model_dump()


def _read_lines(path):
    return read_text(path, MAX_LOG_BYTES, RunError).split("\n")[:-1]


def _one_line(text):
    """Returns a text without line breaks, which would shift all lines after it."""
    return " ".join(text.splitlines())


def _check_test_text(folders, test_pairs):
    """Checks that finished seeds were scored on these sources and references."""
    for folder in folders:
        for name, texts in zip((SOURCES, REFERENCES), test_pairs, strict=True):
            path = folder / name
            if _read_lines(path) != [*map(_one_line, texts)]:
                raise DataError(
                    f"{path}: differs from data.test, so the test set has changed "
                    f"since this seed was scored. Delete {folder / RESULT} to "
                    "score it again, or choose another `output`"
                )


def _store_or_check_recipe(output, recipe):
    """Stores the recipe, or checks that the stored one differs only in the seed."""
    path = output / CONFIG
    if not path.is_file():
        dump_recipe(recipe, path)
        return
    changed = changed_keys(load_recipe(path), recipe, {"training": {"seed"}})
    if changed:
        raise RecipeError(
            f"{path}: differs from the recipe in {describe_changes(changed)}. "
            "Choose another `output`"
        )


def _train_all(config, folders, seeds, jobs):
    """Trains seeds in processes and yields each as soon as it is trained.

    At most `jobs` processes run at a time. Each has a slot, a number below `jobs` that
    determines its share of the cores. All processes have exited when the generator
    ends or is closed, even after an exception.
    """
    waiting, running = list(seeds), {}
    jobs = min(jobs, max(len(seeds), 1))
    # A single process shows its progress on standard error, if that is a terminal.
    shows_progress = jobs == 1 and os.isatty(2)
    try:
        while waiting or running:
            for slot in range(jobs):
                if waiting and slot not in running:
                    seed = waiting.pop(0)
                    process = _start(config, folders[seed], seed, shows_progress)
                    running[slot] = seed, process
                    if jobs > 1 and hasattr(os, "sched_setaffinity"):
                        cores = sorted(os.sched_getaffinity(0))
                        os.sched_setaffinity(process.pid, cores[slot::jobs])
            slot = _wait_for_one(running)
            seed, process = running.pop(slot)
            if process.returncode:
                message = f"training ended with exit code {process.returncode}"
                if not shows_progress:
                    log = folders[seed] / LOG
                    lines = ["no output", *log.read_text(errors="replace").splitlines()]
                    message += f": {lines[-1].strip()} (see {log})"
                raise RunError(f"seed {seed}: {message}")
            yield seed
    finally:
        _stop([process for _, process in running.values()])


def _stop(processes):
    """Makes training processes save a checkpoint, and waits until they have exited.

    If the wait is interrupted, the processes are killed.
    """
    try:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _start(config, folder, seed, shows_progress):
    """Starts a seed's training, with output to `train.log` unless `shows_progress`."""
    command = [sys.executable, "-m", "keras_transformer", "train", str(config)]
    command += ["--output", str(folder), "--set", f"training.seed={seed}"]
    # The terminal sends Ctrl-C and SIGHUP to the children, too. They ignore both and
    # save when `_stop` sends SIGTERM. A second signal would kill them while they save.
    command = ["sh", "-c", 'trap "" INT HUP; exec "$@"', "sh", *command]
    start = functools.partial(subprocess.Popen, command, stdin=subprocess.DEVNULL)
    if shows_progress:
        return start(stdout=subprocess.DEVNULL)
    folder.mkdir(exist_ok=True)
    path = folder / LOG
    if path.is_symlink() or (path.exists() and path.stat().st_nlink > 1):
        path.unlink()  # Writing would change a file elsewhere.
    with open(path, "ab") as log:
        return start(stdout=log, stderr=log)


def _wait_for_one(running):
    """Waits until a process ends and returns its slot."""
    while True:
        for slot, (_, process) in running.items():
            if process.poll() is not None:
                return slot
        time.sleep(0.2)


def _evaluate(recipe, test_pairs, seed, folder):
    """Scores the model of a seed on the test set and stores the result."""
    sources, references = test_pairs
    settings = recipe.evaluation.model_dump()
    scores = score_model(folder, sources, references, **settings)
    compared = scores.translations, references
    chrf = evaluation.chrf(*compared, settings["lowercase"])
    validation = read_final_scores(folder) or {}
    seconds = (row.get("seconds") or 0 for row in read_metrics(folder))
    result = {
        "seed": seed,
        "bleu": scores.bleu.score,
        "bleu_interval": list(evaluation.bleu_interval(*compared, **settings)),
        "chrf": chrf.score,
        "perplexity": scores.perplexity,
        "validation_bleu": validation.get("bleu"),
        "validation_perplexity": validation.get("perplexity"),
        "parameters": scores.parameters,
        "seconds": max(seconds, default=0),
        "signatures": [scores.bleu.signature, chrf.signature],
    }
    names = TRANSLATIONS, SOURCES, REFERENCES
    for name, texts in zip(names, (scores.translations, *test_pairs), strict=True):
        replace_text(folder / name, "".join(f"{_one_line(text)}\n" for text in texts))
    write_result(folder, result)
    return result
