"""A minimal recipe, and a helper that returns the error of an invalid recipe."""

import pytest

from keras_transformer.errors import RecipeError
from keras_transformer.recipes import load_recipe

# With a section `model`, missing keys get the paper's values. Without it, values that
# fit the text and the machine would be chosen.
MINIMAL = """
data:
  train: {source: a.en, target: [a.de]}
model: {}
"""


def recipe_error(recipe, *overrides):
    """Loads an invalid recipe and returns the error's message, which is one line."""
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message
