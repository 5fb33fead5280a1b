"""keras-transformer plot, average, repeat and ablate"""

import pathlib
from typing import Annotated

import typer
from typer import Argument, Option

import keras_transformer as kt
from keras_transformer.cli import console, options
from keras_transformer.cli.train import load_adapted_recipe
from keras_transformer.errors import UserError
from keras_transformer.sizes import SIZES, WIDTHS


def plot(
    runs: Annotated[list[pathlib.Path], Argument(metavar="RUN", help="Run folder.")],
    output: Annotated[
        pathlib.Path | None,
        Option(
            "--output",
            "-o",
            help="File to write, .png, .pdf or .svg (default: RUN/curves.png, or "
            "curves.png for several runs).",
        ),
    ] = None,
):
    """Draw the training curves of runs.

    The picture shows loss, validation metrics and learning rate against steps and
    minutes, also of runs that are still training.

    \b
    keras-transformer plot runs/mine
    keras-transformer plot runs/small runs/large --output comparison.pdf
    """
    for run in runs:
        console.require_run(run)
    if output is None:
        output = pathlib.Path(kt.saving.names.CURVES)
        output = runs[0] / output if len(runs) == 1 else output
    console.require_writable(output)
    suffixes = kt.runs.report.SUFFIXES
    if output.suffix.lower() not in suffixes:
        raise UserError(f"--output {output}: must end in {', '.join(suffixes)}")
    kt.runs.report.draw_curves(runs, output)
    typer.echo(output)


def average(
    run: Annotated[pathlib.Path, Argument(metavar="RUN", help="Run folder.")],
    last: Annotated[
        int, Option(min=1, help="Number of newest checkpoints to average.")
    ] = 5,
    output: Annotated[
        pathlib.Path | None,
        Option("--output", "-o", help="File to write (default: RUN/model.keras)."),
    ] = None,
):
    """Average the last checkpoints of a run into one model.

    If the command replaces RUN/model.keras, it removes the old model's validation
    scores from RUN/metrics.jsonl.

    \b
    keras-transformer average runs/mine --last 5
    """
    console.require_run(run)
    console.require_writable(output)
    if output is not None and output.suffix != ".keras":
        raise UserError(f"--output {output}: must end in .keras")

    console.load_tensorflow()
    path, checkpoints = kt.runs.average_run(run, last, output)
    console.print_status(f"averaged {len(checkpoints)} checkpoints")
    typer.echo(path)
    if path.resolve().parent != run.resolve():
        console.print_status(
            f"the model needs its tokenizer: copy {run / 'tokenizer'} next to it"
        )


def repeat(
    recipe: options.RecipeName,
    output: Annotated[
        pathlib.Path,
        Option("--output", "-o", metavar="FOLDER", help="Folder for runs and report."),
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

    Each model is scored on the recipe's test set. The report also has its validation
    scores, by which to choose between recipes. Run the same command again to resume. To
    test the difference between two recipes, repeat each of them and pass the output
    folders to the command compare.

    \b
    keras-transformer repeat multi30k_en_de --seeds 1,2,3 --output seeds --jobs 2
    """
    console.refuse_workers("repeat")
    numbers = _parse_seeds(seeds)
    console.require_folder_path(output)
    loaded = load_adapted_recipe(recipe, overrides, None, output)

    def on_seed(result):
        console.print_status(f"seed {result['seed']}: BLEU {result['bleu']:.2f}")

    with console.resume_hint(f"complete {output}"):
        kt.runs.repeat(loaded, numbers, output, jobs, on_seed)
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


def ablate(
    recipe: options.RecipeName,
    output: Annotated[
        pathlib.Path,
        Option("--output", "-o", metavar="FOLDER", help="Folder for runs and tables."),
    ],
    rows: Annotated[
        str,
        Option(
            metavar="ROWS",
            help="Rows of Table 3; a letter selects all rows of its group.",
        ),
    ] = "base,A,B,C,D,E,big",
    scale: Annotated[
        int, Option(min=1, help="Factor by which all widths are divided.")
    ] = 1,
    num_seeds: Annotated[
        int, Option(min=1, max=1_000, help="Number of runs per row.")
    ] = 1,
    overrides: options.Overrides = (),
):
    """Train the model variations of the paper's Table 3.

    FOLDER/table.md compares the results with the paper. Run the same command again to
    train the missing rows. Several processes with the same --output share the rows.
    Recipe keys set to auto get values that fit the row base, and all rows use them.

    \b
    keras-transformer ablate multi30k_en_de --rows base,A --scale 4 --output table3
    """
    console.refuse_workers("ablate")
    console.require_folder_path(output)
    overrides = [*overrides, *_base_sizes(scale)]
    loaded = load_adapted_recipe(recipe, overrides, None, output)
    names = kt.runs.table3.expand_rows(rows)

    def on_row(row, seed, result):
        perplexity = result["perplexity"]
        shown = "infinite" if perplexity is None else f"{perplexity:.2f}"
        console.print_status(
            f"{row}, seed {seed}: perplexity {shown}, BLEU {result['bleu']:.2f}"
        )

    with console.resume_hint(f"complete {output}"):
        results = kt.runs.table3.ablate(
            loaded,
            names,
            output,
            scale,
            num_seeds,
            progress=not console.settings.quiet,
            on_row=on_row,
        )
    missing = len(names) * num_seeds - len(results)
    if missing:
        console.print_status(
            f"{missing} of {len(names) * num_seeds} runs are missing from the table, "
            "because other processes are still training them"
        )
    typer.echo((output / "table.md").read_text(encoding="utf-8"), nl=False)


def _base_sizes(scale):
    """Yields overrides that set the sizes of row `base`, so that `auto` fits it."""
    yield "model.size=base"
    for name, value in SIZES["base"].items():
        # `row_recipe` reports widths that are not divisible.
        size = max(1, value // scale) if name in WIDTHS else value
        yield f"model.{name}={size}"
