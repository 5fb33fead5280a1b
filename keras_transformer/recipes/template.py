"""Templates of recipes: the text of shipped recipes, with their comments."""

import pathlib

from keras_transformer.errors import RecipeError
from keras_transformer.recipes.load import shipped_recipes
from keras_transformer.recipes.yaml_values import dump_yaml

_FOLDER = pathlib.Path(__file__).parent
# Beginning of the line `data.train` in a recipe that names no training text.
_NO_TEXT = "  train: {}"
# Part of the example command in the recipe's comment, removed if files are given.
_SET_FILES = """ \\
#     --set data.train.source=train.en --set data.train.target=train.de"""


def recipe_template(name, path, train=None) -> str:
    """Returns the text of a shipped recipe, as a starting point for your own.

    Args:
        name: Name of the shipped recipe.
        path: Path of the new file. It replaces the recipe's name in the example
            command.
        train: Mapping with the training files `source` and `target`. If `None`,
            `data.train` is unchanged.

    Raises:
        RecipeError: If there is no such recipe, or `train` is given but the recipe
            already names its training text.
    """
    if name not in shipped_recipes():
        raise RecipeError(
            f"{name}: no shipped recipe of that name. Shipped: "
            f"{', '.join(shipped_recipes())}"
        )
    text = (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    command = "keras-transformer train"
    text = text.replace(f"{command} {name} ", f"{command} {path} ")
    if train is None:
        return text
    if _NO_TEXT not in text:
        raise RecipeError(
            f"{name}: the recipe already names its training text. Use --recipe "
            "files, or omit --source and --target"
        )
    text = text.replace(_SET_FILES, "")
    files = dump_yaml(train, default_flow_style=True, width=10**6)
    return "".join(
        f"  train: {files}" if line.startswith(_NO_TEXT) else line
        for line in text.splitlines(keepends=True)
    )
