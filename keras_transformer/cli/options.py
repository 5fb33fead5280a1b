"""Arguments and options that several commands share."""

import pathlib
from typing import Annotated

import typer
from typer import Argument, Option


def complete_recipe_names(incomplete: str):
    """Completes a recipe's name: shipped recipes with descriptions, and YAML files."""
    from keras_transformer.recipes import shipped_recipes

    folder = pathlib.Path(incomplete).parent if "/" in incomplete else pathlib.Path()
    files = [str(path) for path in sorted(folder.glob("*.yaml"))]
    return [*shipped_recipes().items(), *files]


def complete_recipe_keys(incomplete: str):
    """Completes --set with the dotted keys of recipes, each followed by `=`."""
    from keras_transformer.recipes import dotted_recipe_keys

    return [f"{key}=" for key in dotted_recipe_keys()]


def _check_patience(value):
    if value is not None and not value > 0:
        raise typer.BadParameter(f"{value}: must be above 0")
    return value


Model = Annotated[
    pathlib.Path,
    Argument(
        metavar="MODEL",
        help="Run folder, .keras file, preset folder, SavedModel folder, name of a "
        "packaged model, or hf://OWNER/NAME.",
    ),
]
WeightsModel = Annotated[
    pathlib.Path,
    Argument(
        metavar="MODEL",
        help="Run folder, .keras file, preset folder, name of a packaged model, or "
        "hf://OWNER/NAME.",
    ),
]
RecipeName = Annotated[
    str,
    Argument(
        metavar="RECIPE",
        autocompletion=complete_recipe_names,
        help="Name of a shipped recipe or a YAML file.",
    ),
]
Overrides = Annotated[
    list[str],
    Option(
        "--set",
        metavar="KEY=VALUE",
        autocompletion=complete_recipe_keys,
        help="Set the value of a recipe key. Repeatable.",
    ),
]
InputPath = Annotated[
    pathlib.Path | None,
    Option(
        "--input",
        "-i",
        help="Text file, plain or compressed (default: standard input).",
    ),
]
OutputPath = Annotated[
    pathlib.Path | None,
    Option("--output", "-o", help="Output file (default: standard output)."),
]
Source = Annotated[
    pathlib.Path, Option("--source", "-s", help="Source text, one sentence per line.")
]
Target = Annotated[
    pathlib.Path,
    Option("--target", "-t", help="Translations, one per source line."),
]
Json = Annotated[bool, Option("--json", help="Print JSON.")]
BeamSize = Annotated[
    int | None,
    Option(
        min=1,
        max=10_000,
        help="Beam size; 1 is greedy search (default: the model's setting, else 4).",
    ),
]
LengthPenalty = Annotated[
    float | None,
    Option(
        min=0, help="Length penalty alpha (default: the model's setting, else 0.6)."
    ),
]
Patience = Annotated[
    float | None,
    Option(
        callback=_check_patience,
        help="Stop when patience x beam size hypotheses have finished (default: the "
        "model's setting, else search until no better hypothesis is possible).",
    ),
]
OtherModels = Annotated[
    list[pathlib.Path],
    Option(
        metavar="MODEL",
        help="Model to add to an ensemble, with the same vocabulary. Repeatable.",
    ),
]
AllowUnsafe = Annotated[
    bool,
    Option(
        "--allow-unsafe",
        help="Do not check the model. It can then run any code on this machine.",
    ),
]
# Here, each part is a batch. In training, the parts are split from one batch.
ParallelParts = Annotated[
    int,
    Option(
        min=1,
        max=1_000,
        metavar="N",
        help="Number of batches to process in parallel. They share the CPU cores.",
    ),
]
