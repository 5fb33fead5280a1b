"""keras-transformer train"""

import pathlib
from typing import Annotated

import typer
from typer import Argument
from typer import Option

import keras_transformer
from keras_transformer.cli import console
from keras_transformer.cli import options
from keras_transformer.errors import UserError


@console.command
def train(
    recipe: Annotated[
        str | None,
        Argument(metavar="RECIPE", help="Recipe or YAML file (default: list recipes)."),
    ] = None,
    output: Annotated[
        pathlib.Path | None, Option("--output", "-o", metavar="RUN", help="Run folder.")
    ] = None,
    overrides: options.Overrides = (),
    initial_model: Annotated[
        pathlib.Path | None,
        Option("--from", metavar="MODEL", help="Run or .keras file to fine-tune."),
    ] = None,
    allow_changes: Annotated[
        bool, Option("--allow-changes", help="Resume with a changed recipe or text.")
    ] = False,
    restart: Annotated[
        bool, Option("--restart", help="Delete the existing run and start over.")
    ] = False,
    deterministic: Annotated[
        bool, Option("--deterministic", help="Make training on a GPU reproducible.")
    ] = False,
    worker_timeout: Annotated[
        float, Option(min=1, help="Seconds until a silent worker counts as lost.")
    ] = 30.0,
):
    """Train a model or resume an interrupted run.

    --from copies weights, vocabulary and architecture, but not the optimizer state.

    \b
    keras-transformer train phrases --output runs/phrases
    keras-transformer train files --output runs/mine \\
      --set data.train.source=train.en --set data.train.target=train.de
    keras-transformer train files --from runs/mine --output runs/finer \\
      --set data.train.source=new.en --set data.train.target=new.de
    """
    from keras_transformer.recipes import load_recipe
    from keras_transformer.recipes import shipped_recipes

    if recipe is None:
        descriptions = shipped_recipes()
        width = max(map(len, descriptions))
        for name, description in descriptions.items():
            typer.echo(f"{name:{width}}  {description}")
        return
    if deterministic:
        overrides = [*overrides, "training.deterministic=true"]
    keys = {}
    if initial_model is not None:
        from keras_transformer.saving.load import recipe_keys
        from keras_transformer.saving.load import weights_file

        found = console.find_model(initial_model)
        keys = recipe_keys(found)
        weights = weights_file(found) or "its newest checkpoint"
        console.print_status(f"--from {initial_model}: using the weights of {weights}")
    loaded = load_recipe(recipe, overrides, keys)
    if output is None:
        raise UserError("--output RUN, the folder of the run, is missing")
    if output.exists() and not output.is_dir():
        raise UserError(f"{output}: must be a folder, not a file")

    console.load_tensorflow()
    hint = f"resume from the last checkpoint in {output / 'checkpoints'}"
    with console.resume_hint(hint), console.exit_on_sigterm():
        summary = keras_transformer.train(
            loaded,
            output,
            allow_changes=allow_changes,
            restart=restart,
            worker_timeout=worker_timeout,
        )
    for key, value in summary.items():
        shown = f"{value:.4g}" if isinstance(value, float) else value
        typer.echo(f"{key}: {shown}")
