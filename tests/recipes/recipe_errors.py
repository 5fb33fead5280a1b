"""A minimal recipe, and the errors of invalid ones."""

import pytest

from keras_transformer.errors import RecipeError
from keras_transformer.recipes import load_recipe

# Because of the section `model`, missing keys default to the paper's values.
MINIMAL = """
data:
  train: {source: a.en, target: [a.de]}
model: {}
"""


def recipe_error(recipe, *overrides):
    """Returns the message of a `RecipeError`, which must be one line."""
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message
