"""keras-transformer init"""

import pathlib
import shlex
from typing import Annotated

import typer
from typer import Argument, Option

from keras_transformer.cli import console, options
from keras_transformer.errors import UserError


def init(
    path: Annotated[
        pathlib.Path, Argument(metavar="FILE", help="Recipe to write.")
    ] = pathlib.Path("recipe.yaml"),
    recipe: Annotated[
        str,
        Option(
            metavar="NAME",
            autocompletion=options.complete_recipe_names,
            help="Name of the shipped recipe to copy.",
        ),
    ] = "files",
    source: Annotated[
        str | None,
        Option("--source", "-s", metavar="FILE", help="Source text to train on."),
    ] = None,
    target: Annotated[
        str | None,
        Option(
            *("--target", "-t"),
            metavar="FILE",
            help="Translations, one per source line.",
        ),
    ] = None,
    force: Annotated[
        bool, Option("--force", help="Overwrite the file if it exists.")
    ] = False,
):
    """Write a commented recipe to edit.

    \b
    keras-transformer init my.yaml --source train.en --target train.de
    keras-transformer train my.yaml --output runs/mine
    """
    from keras_transformer.files import replace_file
    from keras_transformer.recipes import recipe_template

    console.require_parent(path)
    if path.suffix not in (".yaml", ".yml"):
        raise UserError(f"{path}: the name of a recipe must end in .yaml or .yml")
    if path.is_dir():
        raise UserError(f"{path}: is a folder. Choose another name")
    if path.exists() and not force:
        raise UserError(f"{path}: already exists. Choose another name, or pass --force")
    if (source is None) != (target is None):
        raise UserError("--source and --target: give both or neither")
    train = None if source is None else {"source": source, "target": target}
    text = recipe_template(recipe, path, train)
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    typer.echo(path)
    lacks_text = recipe == "files" and train is None
    begin = "edit data.train, then" if lacks_text else "next"
    recipe_path = shlex.quote(str(path))
    console.print_status(
        f"{begin}: keras-transformer train {recipe_path} --output runs/mine"
    )
