"""Recipes: experiments as YAML files, with their schema and loader."""

from keras_transformer.errors import RecipeError
from keras_transformer.recipes.load import dump_recipe
from keras_transformer.recipes.load import load_recipe
from keras_transformer.recipes.load import shipped_recipes
from keras_transformer.recipes.schema import Recipe

__all__ = [
    "Recipe",
    "RecipeError",
    "dump_recipe",
    "load_recipe",
    "shipped_recipes",
]
