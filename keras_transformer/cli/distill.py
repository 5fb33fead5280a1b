"""keras-transformer distill"""

import json
import pathlib
from typing import Annotated

from typer import Option

import keras_transformer as kt
from keras_transformer.cli import console, options
from keras_transformer.cli.filter import filter
from keras_transformer.cli.train import train
from keras_transformer.cli.translate import translate
from keras_transformer.errors import UserError
from keras_transformer.saving.names import DISTILLED


def distill(
    teacher: options.WeightsModel,
    source: options.Source,
    output: Annotated[
        pathlib.Path, Option("--output", "-o", metavar="RUN", help="Run folder.")
    ],
    keep_fraction: Annotated[
        float,
        Option(
            callback=options.fraction,
            help="Train on this fraction of the translations, best first.",
        ),
    ] = 0.9,
    overrides: options.Overrides = (),
    allow_unsafe: options.AllowUnsafe = False,
):
    """Train a fast model on the translations of a larger one.

    The command translates the source text, filters the translations by rules and by the
    teacher's score, and trains the recipe `student` on the rest. Run the same command
    again to resume. The texts are in RUN/distilled.

    \b
    keras-transformer distill europarl_en_fr --source train.en --output runs/student \\
      --set data.validation.source=val.en --set data.validation.target=val.fr
    """
    console.refuse_workers("distill")
    console.find_model(teacher)
    console.require_files(source)
    console.require_folder_path(output)
    folder = output / DISTILLED
    if (output / "config.yaml").exists() and not folder.exists():
        raise UserError(f"{output}: is another run. Choose another --output")
    translated = folder / "translated"
    kept = {side: folder / side for side in ("source", "target")}

    def recipe_keys(paths):
        data = json.dumps({side: str(path) for side, path in paths.items()})
        return [f"data.train={data}", *overrides]

    console.load_tensorflow()
    # Errors are found before the translation, which takes longest.
    kt.recipes.load_recipe(
        "student", recipe_keys(dict.fromkeys(kept, source)), None, output
    )
    if output.is_dir():
        kt.runs.folder.refuse_other_files(output)
    folder.mkdir(parents=True, exist_ok=True)
    console.print_status("[1/3] translating")
    translate(teacher, source, translated, resume=True, allow_unsafe=allow_unsafe)
    if kt.runs.folder.has_begun(output):
        console.print_status("[2/3] not filtering: the run keeps its text")
    else:
        console.print_status("[2/3] filtering")
        filter(
            *(teacher, source, translated, *kept.values()),
            keep_fraction=keep_fraction,
            allow_unsafe=allow_unsafe,
        )
    console.print_status("[3/3] training")
    train("student", output, recipe_keys(kept))
