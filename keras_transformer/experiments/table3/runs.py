"""Trains rows of Table 3 and measures them, each once however often it is started."""

import json
import pathlib

from keras_transformer import evaluation
from keras_transformer.errors import RecipeError
from keras_transformer.errors import RunBusy
from keras_transformer.evaluation.perplexity import perplexity_of
from keras_transformer.experiments import folder as run_folder
from keras_transformer.experiments.corpora import load_pairs
from keras_transformer.experiments.table3.rows import row_recipe
from keras_transformer.experiments.table3.table import write_tables
from keras_transformer.experiments.train import train
from keras_transformer.files import replace_file
from keras_transformer.files import told_when_full
from keras_transformer.recipes import Recipe
from keras_transformer.saving.open import open_model

RESULT = "result.json"


def ablate(recipe, rows, output, scale=1, seeds=1, progress=True, on_row=None):
    """Trains rows on a recipe's data and lays them beside the paper's.

    A row that is finished is not trained again, and one that was interrupted goes on.
    The tables are written anew after each row. Several processes may share an `output`:
    each leaves out the rows that another one is at.

    Args:
        recipe: A `Recipe` with validation data.
        rows: Names of rows, as `expand_rows` gives them.
        output: Folder of the runs and tables.
        scale: What all widths are divided by.
        seeds: Runs of each row.
        progress: Whether to show the training's progress.
        on_row: Function of the row's name, the seed and its result, called after each.

    Returns:
        List of the results, mappings as in `result.json`, without those of rows that
        another process has not finished.

    Raises:
        RecipeError: no validation data, or trees; or `output` holds rows of other
            settings.
        RunBusy: no row is finished, and other processes are at all of them.
        RunError, DataError, TrainingFault: as in `experiment.run`.
    """
    output = pathlib.Path(output)
    if getattr(recipe.data, "validation", True) is None:
        raise RecipeError("data.validation is what the rows are measured on; give it")
    if recipe.data.kind == "trees":
        raise RecipeError("data.kind trees: the rows of Table 3 are of translation")
    # All of them before the first is trained: a mistake shows at once.
    jobs = [
        (row, seed, row_recipe(recipe, row, scale, seed))
        for row in rows
        for seed in range(1, seeds + 1)
    ]
    jobs = [
        (row, seed, output / "runs" / f"{row}-seed{seed}", job)
        for row, seed, job in jobs
    ]
    _all_finished(jobs)  # a folder of other settings shows before hours of training
    busy = None
    for row, seed, folder, job in jobs:
        try:
            result = _row(folder, job, row, seed, progress)
        except RunBusy as error:
            busy = error
            continue
        write_tables(_all_finished(jobs), output, scale)
        if on_row is not None:
            on_row(row, seed, result)
    results = _all_finished(jobs)
    if busy is not None and not results:
        raise busy
    write_tables(results, output, scale)
    return results


def _row(folder, job, row, seed, progress):
    """A row's result, there already or trained now.

    Raises:
        RunBusy: another process is at it.
    """
    result = _finished(folder, job)
    if result is not None:
        return result
    run_folder.prepare(folder)
    # The run's own lock ends before the row is measured.
    with run_folder.locked(folder, ".row.lock"):
        result = _finished(folder, job)
        if result is None:
            summary = train(job, folder, progress)
            result = _measure(folder, job, row, seed, summary["training seconds"])
        return result


def _all_finished(jobs):
    """The stored results, those of other processes among them."""
    found = [_finished(folder, job) for *_, folder, job in jobs]
    return [result for result in found if result is not None]


def _finished(folder, recipe):
    """The stored result of a row, or None.

    Raises:
        RecipeError: it is one of other settings.
    """
    path = folder / RESULT
    if not path.is_file():
        return None
    stored = json.loads(path.read_text(encoding="utf-8"))
    if _read_recipe(stored) != recipe:
        raise RecipeError(
            f"{path}: of another recipe or scale; choose another --output"
        )
    return stored


def _read_recipe(stored):
    """The recipe of a stored result, with defaults for keys that are newer."""
    try:
        return Recipe.model_validate(stored["recipe"])
    except ValueError:
        return None


def _measure(folder, recipe, row, seed, seconds):
    """Perplexity and BLEU of a trained row on the validation pairs."""
    model = open_model(folder)
    pairs = [pair for pair in load_pairs(recipe)["validation"] if all(pair)]
    sources, references = map(list, zip(*pairs, strict=True))
    bleu = evaluation.bleu(
        model.translate(sources),
        references,
        tokenize=recipe.evaluation.tokenize,
        lowercase=recipe.evaluation.lowercase,
    )
    result = {
        "row": row,
        "seed": seed,
        "parameters": model.model.count_params(),
        "perplexity": perplexity_of(model.score(sources, references)),
        "bleu": bleu.score,
        "signature": bleu.signature,
        "seconds": seconds,
        "recipe": recipe.model_dump(mode="json"),
    }
    with told_when_full(folder), replace_file(folder / RESULT) as temporary:
        temporary.write_text(json.dumps(result, indent=1), encoding="utf-8")
    return result
