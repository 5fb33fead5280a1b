"""Recipes: experiments as YAML files, with their schema and loader."""

from keras_transformer.errors import RecipeError
from keras_transformer.recipes.load import (
    dump_recipe,
    load_recipe,
    packaged_recipes,
    recipe_template,
)
from keras_transformer.recipes.schema import Recipe

__all__ = [
    "Recipe",
    "RecipeError",
    "dump_recipe",
    "load_recipe",
    "packaged_recipes",
    "recipe_template",
]
