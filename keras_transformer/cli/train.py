"""keras-transformer train"""

import pathlib
from typing import Annotated

import typer

import keras_transformer
from keras_transformer.cli.console import ending_on_sigterm
from keras_transformer.cli.console import existing
from keras_transformer.cli.console import load_tensorflow
from keras_transformer.cli.console import say
from keras_transformer.cli.console import verb
from keras_transformer.errors import UserError


@verb
def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE", help="A shipped recipe's name or a YAML file's path."
        ),
    ] = None,
    output: Annotated[
        pathlib.Path | None,
        typer.Option("--output", "-o", metavar="RUN", help="The run's folder."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Replace one key, such as training.steps=500.",
        ),
    ] = None,
    initial_model: Annotated[
        pathlib.Path | None,
        typer.Option(
            "--from",
            metavar="MODEL",
            help="Begin with the weights, the vocabulary and the architecture of a "
            "run or a .keras file; optimizer and steps begin anew.",
        ),
    ] = None,
    allow_changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes",
            help="Go on although the recipe or the training text has changed.",
        ),
    ] = False,
    restart: Annotated[
        bool,
        typer.Option("--restart", help="Delete what the run has reached; begin anew."),
    ] = False,
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic",
            help="The same weights each time on a GPU, too: training.deterministic.",
        ),
    ] = False,
    worker_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=1,
            help="With several workers (TF_CONFIG): how long one may be silent.",
        ),
    ] = 30.0,
):
    """Train a model, or go on with a run that was interrupted.

    Without RECIPE, list the recipes that come with the package.

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
        described = shipped_recipes()
        width = max(map(len, described))
        for name, description in described.items():
            typer.echo(f"{name:{width}}  {description}")
        return
    overrides = overrides or []
    if deterministic:
        overrides = [*overrides, "training.deterministic=true"]
    keys = {}
    if initial_model is not None:
        from keras_transformer.saving.load import recipe_keys
        from keras_transformer.saving.names import keras_file

        keys = recipe_keys(existing(initial_model))
        weights = keras_file(initial_model) or "its newest checkpoint"
        say(f"--from {initial_model}: the weights are those of {weights}")
    loaded = load_recipe(recipe, overrides, keys)
    if output is None:
        raise UserError("--output RUN, the folder to write the run to, is missing")
    if output.exists() and not output.is_dir():
        raise UserError(f"{output}: a file, where the run's folder was expected")

    load_tensorflow()
    try:
        with ending_on_sigterm():
            summary = keras_transformer.train(
                loaded,
                output,
                allow_changes=allow_changes,
                restart=restart,
                worker_timeout=worker_timeout,
            )
    except KeyboardInterrupt:
        say(
            "interrupted; the same command goes on from the last checkpoint in "
            f"{output / 'checkpoints'}"
        )
        raise typer.Exit(130) from None
    for key, value in summary.items():
        shown = f"{value:.4g}" if isinstance(value, float) else value
        typer.echo(f"{key}: {shown}")
