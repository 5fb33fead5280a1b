"""Arguments and options that several commands share."""

import pathlib
import re
from typing import Annotated

import typer
from typer import Argument, Option

import keras_transformer as kt


def complete_recipe_names(incomplete: str):
    """Completes a recipe's name: packaged recipes with descriptions, and YAML files."""
    folder = pathlib.Path(incomplete).parent if "/" in incomplete else pathlib.Path()
    files = [str(path) for path in sorted(folder.glob("*.yaml"))]
    return [*kt.recipes.packaged_recipes().items(), *files]


def complete_recipe_keys(incomplete: str):
    """Completes --set with the dotted keys of recipes, each followed by `=`."""
    return [f"{key}=" for key in kt.recipes.keys.dotted_recipe_keys()]


def with_flags(message: str, command) -> str:
    """Replaces names of arguments in backticks, such as `beam_size`, by options.

    Messages of commands and of the library name arguments like Python code does. An
    option of the command sets the argument of its name. Two options of `train` are for
    the runs of other commands, too.
    """
    flags = {
        "allow_changes": "--allow-changes to `train`",
        "restart": "an empty folder",
    }
    flags |= {each.name: each.opts[0] for each in command.params}
    return re.sub(r"`(\w+)`", lambda name: flags.get(name[1], name[0]), message)


def search(beam_size, length_penalty, patience, decoding):
    """Returns the given ones of the search options, by their names in `BeamSearch`."""
    values = {"beam_size": beam_size, "length_penalty": length_penalty}
    values["patience"] = patience
    given = {name: value for name, value in values.items() if value is not None}
    if decoding:
        given = kt.recipes.load.read_decoding(decoding) | given
    return given


def complete_decoding_keys(incomplete: str):
    """Completes --decoding with the keys of the section, each followed by `=`."""
    keys = complete_recipe_keys(incomplete)
    section = "decoding."
    return [key.removeprefix(section) for key in keys if key.startswith(section)]


def require(is_valid, rule, split=lambda value: [value]):
    """Returns a callback of typer that refuses other values; `rule` is their name.

    `split` returns the parts of a value that are checked.
    """

    def check(value):
        for part in [] if value is None else split(value):
            if not is_valid(part):
                raise typer.BadParameter(f"{part}: must be {rule}")
        return value

    return check


above_0 = require(lambda value: value > 0, "above 0")
fraction = require(lambda value: 0 < value <= 1, "above 0 and at most 1")


Model = Annotated[
    pathlib.Path,
    Argument(
        metavar="MODEL",
        help="Folder of a run or an import, .keras file, preset, SavedModel, packaged "
        "model, or hf://OWNER/NAME.",
    ),
]
WeightsModel = Annotated[
    pathlib.Path,
    Argument(
        metavar="MODEL",
        help="Folder of a run or an import, .keras file, preset, packaged model, or "
        "hf://OWNER/NAME.",
    ),
]
RecipeName = Annotated[
    str,
    Argument(
        metavar="RECIPE",
        autocompletion=complete_recipe_names,
        help="Name of a packaged recipe or a YAML file.",
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
Resume = Annotated[
    bool,
    Option(
        "--resume",
        help="Write to OUTPUT.part every 500 lines, and continue it if it exists.",
    ),
]
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
        callback=above_0,
        help="Stop when patience x beam size hypotheses have finished (default: the "
        "model's setting, else search until no better hypothesis is possible).",
    ),
]
Decoding = Annotated[
    list[str],
    Option(
        "--decoding",
        metavar="KEY=VALUE",
        autocompletion=complete_decoding_keys,
        help="Set a key of the recipe's section decoding, such as "
        "no_repeat_ngram_size=3. Repeatable.",
    ),
]
OtherModels = Annotated[
    list[pathlib.Path],
    Option(
        metavar="MODEL",
        help="Model to add to an ensemble, with the same vocabulary. Repeatable.",
    ),
]
Adapters = Annotated[
    list[pathlib.Path],
    Option(
        metavar="FOLDER",
        help="Adapters to add to the model: RUN/adapters, or of PEFT. Repeatable.",
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
