"""Checks of recipes whose source and target have separate vocabularies."""

from keras_transformer.recipes.stages import stages_of

_SIZE = "model.variations.source_vocabulary_size"


def source_embeddings(recipe):
    """Returns the number of the source's own embeddings, or `None` if it has none.

    Args:
        recipe: A `Recipe`.

    Raises:
        ValueError: If the data or the model do not allow the vocabularies.
    """
    tokenizer, variations = recipe.tokenizer, recipe.model.variations
    size = variations and variations.source_vocabulary_size
    key = "vocabulary_size" if tokenizer.shared else "source_vocabulary_size"
    expected = getattr(tokenizer, key)
    if size not in (None, expected):
        raise ValueError(
            f"{_SIZE} must be null or tokenizer.{key}. Received: {size} and {expected}"
        )
    if tokenizer.shared:
        return size
    if recipe.data.kind == "trees":
        raise ValueError(
            "tokenizer.shared: false is not available with data.kind trees, since "
            "trees contain the words of their sentences"
        )
    if any(stage.text.directions == "both" for stage in stages_of(recipe)):
        raise ValueError(
            "directions: both needs tokenizer.shared: true, since each language is "
            "both source and target"
        )
    return expected
