"""Trains the model variations of the paper's Table 3 on any translation data.

The paper labels its groups of rows with the letters A to E. Here, the rows of a group
are also numbered, such as `C2`. Group E has a single row, `E`.
"""

import pathlib
from typing import NamedTuple

from pydantic import BaseModel, NonNegativeInt, PositiveInt

from keras_transformer.errors import RecipeError, RunBusyError, require_backend
from keras_transformer.recipes import Recipe, dump_recipe
from keras_transformer.recipes.keys import changed_keys, describe_changes
from keras_transformer.runs import folder as run_folder
from keras_transformer.runs.corpora import load_scored_pairs
from keras_transformer.runs.report import (
    PAPER,
    RESULT,
    read_result,
    write_result,
    write_table3,
)
from keras_transformer.runs.train import train
from keras_transformer.runs.validation import score_model
from keras_transformer.saving.names import CONFIG
from keras_transformer.sizes import SIZES, TRAINING_CHANGES, WIDTHS

# The big model is trained for 300,000 steps instead of 100,000.
_BIG_STEPS_FACTOR = 3


def expand_rows(names):
    """Returns row names in the order of the table.

    `names` are separated by commas, such as `"base,A,C2"`. A letter such as `A` selects
    all rows of its group.
    """
    wanted = set()
    for name in filter(None, (part.strip() for part in names.split(","))):
        is_group = len(name) == 1
        found = [row for row in PAPER if row == name or (is_group and row[:-1] == name)]
        if not found:
            raise RecipeError(
                f"`rows` must be names in Table 3 ({', '.join(PAPER)}) or letters of "
                f"its groups, such as A. Received: {name!r}"
            )
        wanted.update(found)
    if not wanted:
        raise RecipeError("`rows` must name at least one row of Table 3")
    return [row for row in PAPER if row in wanted]


def row_recipe(recipe, row, scale=1, seed=1):
    """Returns the recipe with the model and training of a row.

    Data, tokenizer, schedule, normalization and activation are unchanged. As in the
    paper, the model is the last checkpoint, without averaging. The search uses beam
    size 4 and length penalty 0.6. The row `big` is trained for three times as many
    steps as the others. `scale` divides all widths; heads, layers and dropout are
    unchanged.
    """
    sizes = dict(SIZES[row])
    for name in WIDTHS:
        if sizes[name] % scale:
            raise RecipeError(
                f"row {row}: {name}={sizes[name]} is not divisible by `scale` {scale}"
            )
        sizes[name] //= scale
    values = recipe.model_dump()
    kept = {name: values["model"][name] for name in ("normalization", "activation")}
    # `sizes` replaces every value in which the row differs from this size.
    values["model"] = {**sizes, **kept, "size": "base"}
    changes = TRAINING_CHANGES.get(row, {})
    training = {
        **values["training"],
        **changes,
        "average_checkpoints": 1,
        "ema_momentum": None,
        "seed": seed,
    }
    # A stage's own settings must not hide the changes of the row.
    stages = [{**stage, **changes} for stage in training["stages"] or ()]
    if row == "big":
        for settings in (training, *stages):
            settings["steps"] *= _BIG_STEPS_FACTOR
    values["training"] = {**training, "stages": stages or None}
    values["decoding"] = {"beam_size": 4, "length_penalty": 0.6}
    return Recipe.model_validate(values)


class _Result(BaseModel):
    """Content of `result.json`."""

    row: str
    seed: NonNegativeInt
    parameters: PositiveInt
    perplexity: float | None  # `None` if it is infinite, as for a diverged model
    bleu: float
    signature: str
    seconds: float
    recipe: Recipe


class _Job(NamedTuple):
    """A row of Table 3 to train with one seed."""

    row: str
    seed: int
    folder: pathlib.Path
    recipe: Recipe

    def result(self):
        """Returns the stored result, or `None`."""
        stored = read_result(self.folder, _Result)
        if stored is not None:
            changed = changed_keys(Recipe.model_validate(stored["recipe"]), self.recipe)
            if changed:
                raise RecipeError(
                    f"{self.folder / RESULT} has a different recipe or scale "
                    f"({describe_changes(changed)}). Choose another `output`"
                )
        return stored


def ablate(recipe, rows, output, scale=1, num_seeds=1, progress=True, on_row=None):
    """Trains rows on a recipe's data and compares them with the paper.

    The recipe is stored in `output`. Finished rows are not trained again, and
    interrupted rows resume. The tables are rewritten after each row. Several processes
    may share an `output`: each skips the rows that another process is training.

    Args:
        recipe: A `Recipe` with validation data.
        rows: Row names from `expand_rows`.
        output: Folder of the runs and tables.
        scale: Divisor of all widths (see `row_recipe`).
        num_seeds: Number of runs per row.
        progress: Whether to show the progress of training.
        on_row: Function that is called with row name, seed and result after each run.

    Returns:
        List of results, mappings as in `result.json`, without rows that another process
        has not finished.

    Raises:
        RecipeError: If there is no validation data, the data are trees, or `output`
            contains rows with different settings.
        RunBusyError: If no row is finished and other processes are training all.
        RunError, DataError, TrainingFaultError: If the training of a row fails.
    """
    require_backend("training of several runs", "tensorflow")
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
        for seed in range(1, num_seeds + 1)
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
        except RunBusyError as error:
            busy = error
            continue
        write_table3(_read_results(jobs), output, scale)
        if on_row is not None:
            on_row(job.row, job.seed, result)
    results = _read_results(jobs)
    if busy is not None and not results:
        raise busy
    write_table3(results, output, scale)
    return results


def _train_row(job, progress):
    """Returns the stored result of a row, training it first if necessary."""
    # `train` releases its lock before the row is evaluated, so a second lock is needed.
    with run_folder.create_and_lock(job.folder, ".row.lock"):
        result = job.result()
        if result is None:
            summary = train(job.recipe, job.folder, progress=progress)
            result = _evaluate(job, summary["training seconds"])
        return result


def _read_results(jobs):
    """Returns the stored results, including results of other processes."""
    found = [job.result() for job in jobs]
    return [result for result in found if result is not None]


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
