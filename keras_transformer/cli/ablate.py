"""keras-transformer ablate"""

import pathlib
from typing import Annotated

import typer
from typer import Option

from keras_transformer.cli import common, console, options
from keras_transformer.cli.recipes import AdaptiveRecipe
from keras_transformer.sizes import SIZES, WIDTHS


def ablate(
    recipe: options.RecipeName,
    output: Annotated[
        pathlib.Path,
        Option("--output", "-o", metavar="DIR", help="Folder for runs and tables."),
    ],
    rows: Annotated[
        str, Option(help="Rows of Table 3; a letter selects all rows of its group.")
    ] = "base,A,B,C,D,E,big",
    scale: Annotated[
        int, Option(min=1, help="Factor by which all widths are divided.")
    ] = 1,
    seeds: Annotated[int, Option(min=1, max=1_000, help="Number of runs per row.")] = 1,
    overrides: options.Overrides = (),
):
    """Train the model variations of the paper's Table 3.

    DIR/table.md compares the results with the paper. Run the same command again to
    train the missing rows. Several processes with the same --output share the rows.
    Recipe keys set to auto get values that fit the row base, and all rows use them.

    \b
    keras-transformer ablate multi30k_en_de --rows base,A --scale 4 --output table3
    """
    console.refuse_workers("ablate")
    console.require_folder_path(output)
    overrides = [*overrides, *_base_sizes(scale)]
    loaded = AdaptiveRecipe(recipe, overrides, None, output).adapt()
    from keras_transformer.runs import table3

    names = table3.expand_rows(rows)

    def on_row(row, seed, result):
        perplexity = result["perplexity"]
        shown = "infinite" if perplexity is None else f"{perplexity:.2f}"
        console.print_status(
            f"{row}, seed {seed}: perplexity {shown}, BLEU {result['bleu']:.2f}"
        )

    with console.resume_hint(f"complete {output}"):
        results = table3.ablate(
            loaded,
            names,
            output,
            scale,
            seeds,
            progress=not common.current.quiet,
            on_row=on_row,
        )
    missing = len(names) * seeds - len(results)
    if missing:
        console.print_status(
            f"{missing} of {len(names) * seeds} runs are missing from the table, "
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
