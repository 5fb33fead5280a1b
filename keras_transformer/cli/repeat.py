"""keras-transformer repeat"""

import pathlib
from typing import Annotated

import typer
from typer import Option

from keras_transformer.cli import console, options
from keras_transformer.cli.recipes import AdaptiveRecipe
from keras_transformer.errors import UserError


def repeat(
    recipe: options.RecipeName,
    output: Annotated[
        pathlib.Path,
        Option("--output", "-o", metavar="DIR", help="Folder for runs and report."),
    ],
    seeds: Annotated[
        str, Option(metavar="LIST", help="Seeds, separated by commas.")
    ] = "1,2,3",
    jobs: Annotated[
        int, Option(min=1, help="Seeds to train in parallel, at most one per core.")
    ] = 1,
    overrides: options.Overrides = (),
):
    """Train a recipe with several seeds and report the spread.

    Each model is scored on the recipe's test set with the recipe's beam search. The
    report also has its validation scores, by which to choose between recipes. Run the
    same command again to resume. To test the difference between two recipes on the test
    set, repeat each of them and pass the output folders to the command compare.

    \b
    keras-transformer repeat multi30k_en_de --seeds 1,2,3 --output seeds --jobs 2
    """
    console.refuse_workers("repeat")
    numbers = _parse_seeds(seeds)
    console.require_folder_path(output)
    loaded = AdaptiveRecipe(recipe, overrides, None, output).adapt()
    from keras_transformer.runs.repeat import repeat

    def on_seed(result):
        console.print_status(f"seed {result['seed']}: BLEU {result['bleu']:.2f}")

    hint = f"complete {output}"
    with console.resume_hint(hint):
        repeat(loaded, numbers, output, jobs, on_seed)
    typer.echo((output / "results.md").read_text(encoding="utf-8"), nl=False)


def _parse_seeds(text):
    try:
        seeds = [int(each) for each in text.split(",")]
    except ValueError:
        raise UserError(
            f"--seeds {text}: must be whole numbers separated by commas"
        ) from None
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds {text}: a seed is given twice")
    if not 0 <= min(seeds) <= max(seeds) < 2**32:
        raise UserError(f"--seeds {text}: seeds must be from 0 to 2**32 - 1")
    return seeds
