"""keras-transformer ablate"""

import pathlib
from typing import Annotated

import typer

from keras_transformer.cli.console import load_tensorflow
from keras_transformer.cli.console import refuse_workers
from keras_transformer.cli.console import say
from keras_transformer.cli.console import verb


@verb
def ablate(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="A shipped recipe's name or a YAML file's path."
        ),
    ],
    output: Annotated[
        pathlib.Path,
        typer.Option("--output", "-o", metavar="DIR", help="Of runs and tables."),
    ],
    rows: Annotated[
        str,
        typer.Option(help="Rows of Table 3; a letter stands for all of its rows."),
    ] = "base,A,B,C,D,E,big",
    scale: Annotated[int, typer.Option(min=1, help="Divides all widths.")] = 1,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each row.")] = 1,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Replace one key."),
    ] = None,
):
    """Train the variations of Table 3 and lay them beside the paper's.

    Started again, it goes on with the rows that are missing. Started several times at
    once, each process trains rows that no other one is at.

    \b
    keras-transformer ablate multi30k_en_de --rows base,A --scale 4 --output table3
    """
    from keras_transformer.recipes import load_recipe

    refuse_workers("ablate")
    loaded = load_recipe(recipe, overrides or ())
    load_tensorflow()
    from keras_transformer.experiments import table3

    names = table3.expand_rows(rows)

    def on_row(row, seed, result):
        say(
            f"{row}, seed {seed}: perplexity {result['perplexity']:.2f}, "
            f"BLEU {result['bleu']:.2f}"
        )

    try:
        results = table3.ablate(loaded, names, output, scale, seeds, on_row=on_row)
    except KeyboardInterrupt:
        say(f"interrupted; the same command goes on with what {output} lacks")
        raise typer.Exit(130) from None
    missing = len(names) * seeds - len(results)
    if missing:
        say(f"{missing} more are being trained by other processes; they end the table")
    typer.echo((output / "table.md").read_text(encoding="utf-8"), nl=False)
