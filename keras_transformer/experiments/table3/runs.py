"""Trains and evaluates the rows of the paper's Table 3."""

import os
import pathlib
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt

from keras_transformer.errors import RecipeError, RunBusy, require_tensorflow
from keras_transformer.experiments import folder as run_folder
from keras_transformer.experiments.corpora import load_scored_pairs
from keras_transformer.experiments.scoring import RESULT, score_model, write_result
from keras_transformer.experiments.table3.rows import row_recipe
from keras_transformer.experiments.table3.table import write_tables
from keras_transformer.experiments.train import train
from keras_transformer.recipes import Recipe, changed_keys, dump_recipe
from keras_transformer.saving.names import CONFIG
from keras_transformer.untrusted import read_json


class _Result(BaseModel):
    """Content of `result.json`."""

    model_config = ConfigDict(extra="allow")

    row: str
    seed: NonNegativeInt
    parameters: PositiveInt
    perplexity: float | None  # `None` if it is infinite, as for a diverged model
    bleu: float
    signature: str
    recipe: dict[str, Any]


class _Job(NamedTuple):
    """A row of Table 3 to train with one seed."""

    row: str
    seed: int
    folder: pathlib.Path
    recipe: Recipe


def ablate(recipe, rows, output, scale=1, seeds=1, progress=True, on_row=None):
    """Trains rows on a recipe's data and compares them with the paper.

    The recipe is stored in `output`. Finished rows are not trained again, and
    interrupted rows resume. The tables are rewritten after each row. Several processes
    may share an `output`: each skips the rows that another process is training.

    Args:
        recipe: A `Recipe` with validation data.
        rows: Row names from `expand_rows`.
        output: Folder of the runs and tables.
        scale: Divisor of all widths (see `row_recipe`).
        seeds: Number of runs per row.
        progress: Whether to show the progress of training.
        on_row: Function that is called with row name, seed and result after each run.

    Returns:
        List of results, mappings as in `result.json`, without rows that another process
        has not finished.

    Raises:
        RecipeError: If there is no validation data, the data are trees, or `output`
            contains rows with different settings.
        RunBusy: If no row is finished and other processes are training all of them.
        RunError, DataError, TrainingFault: If the training of a row fails.
    """
    require_tensorflow("training")
    output = pathlib.Path(output)
    if getattr(recipe.data, "validation", True) is None:
        raise RecipeError("data.validation must be given, to evaluate the rows on it")
    if recipe.data.kind == "trees":
        raise RecipeError("data.kind must not be trees: Table 3 is about translation")
    # All recipes and stored results are checked before hours of training.
    jobs = [
        _Job(
            row,
            seed,
            output / "runs" / f"{row}-seed{seed}",
            row_recipe(recipe, row, scale, seed),
        )
        for row in rows
        for seed in range(1, seeds + 1)
    ]
    _read_results(jobs)
    if not any(output.glob(f"runs/*/{CONFIG}")):
        # Later calls, also on other machines, must use the values chosen for `auto`.
        output.mkdir(parents=True, exist_ok=True)
        dump_recipe(recipe, output / CONFIG)
    busy = None
    for job in jobs:
        try:
            result = _train_row(job, progress)
        except RunBusy as error:
            busy = error
            continue
        write_tables(_read_results(jobs), output, scale)
        if on_row is not None:
            on_row(job.row, job.seed, result)
    results = _read_results(jobs)
    if busy is not None and not results:
        raise busy
    write_tables(results, output, scale)
    return results


def _train_row(job, progress):
    """Returns the stored result of a row, training it first if necessary.

    Raises:
        RunBusy: If another process is training it.
    """
    result = _read_result(job.folder, job.recipe)
    if result is not None:
        return result
    # `train` releases its lock before the row is evaluated, so a second lock is needed.
    with run_folder.create_and_lock(job.folder, ".row.lock"):
        result = _read_result(job.folder, job.recipe)
        if result is None:
            summary = train(job.recipe, job.folder, progress=progress)
            result = _evaluate(job, summary["training seconds"])
        return result


def _read_results(jobs):
    """Returns the stored results, including results of other processes."""
    found = [_read_result(job.folder, job.recipe) for job in jobs]
    return [result for result in found if result is not None]


def _read_result(folder, recipe):
    """Returns the stored result of a row, or `None`.

    Raises:
        RecipeError: If the result was computed with a different recipe.
    """
    path = folder / RESULT
    if not os.path.lexists(path):
        return None
    stored = read_json(path, _Result, error=RecipeError).model_dump(exclude_unset=True)
    try:
        # Keys that did not exist when the result was stored have their defaults.
        stored_recipe = Recipe.model_validate(stored["recipe"])
    except ValueError:
        changed = ["invalid keys"]
    else:
        changed = changed_keys(stored_recipe, recipe)
    if changed:
        raise RecipeError(
            f"{path} has a different recipe or scale ({', '.join(changed)}). Choose "
            "another --output"
        )
    return stored


def _evaluate(job, seconds):
    """Computes and stores the perplexity and BLEU of a row on the validation pairs."""
    pairs = load_scored_pairs(job.recipe, "validation")
    scores = score_model(job.folder, *pairs, **job.recipe.evaluation.model_dump())
    result = {
        "row": job.row,
        "seed": job.seed,
        "parameters": scores.parameters,
        "perplexity": scores.perplexity,
        "bleu": scores.bleu.score,
        "signature": scores.bleu.signature,
        "seconds": seconds,
        "recipe": job.recipe.model_dump(mode="json"),
    }
    write_result(job.folder, result)
    return result
