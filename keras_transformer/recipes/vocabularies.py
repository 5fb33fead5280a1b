"""The tokenizer section of a recipe, and checks of separate vocabularies."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from keras_transformer.recipes.data_sections import Fraction, Section, Text
from keras_transformer.recipes.stages import stages_of

_SIZE_KEY = "model.variations.source_vocabulary_size"


class TokenizerSettings(Section):
    """Settings of the vocabulary.

    If `shared` is true, source and target have one vocabulary, learned from both. If it
    is false, each side has its own vocabulary and embeddings, and `vocabulary_size` and
    `model` apply to the target.
    """

    kind: Literal["bpe", "word_piece", "marian"] = "bpe"
    vocabulary_size: Annotated[int, Field(gt=4)] = 37_000
    shared: bool = True
    source_vocabulary_size: Annotated[int, Field(gt=4)] | None = None
    split_digits: bool = False
    model: Text | None = None
    source_model: Text | None = None
    dropout: Fraction = 0.0
    segmentations: PositiveInt = 1

    @model_validator(mode="after")
    def _check_dropout(self):
        if self.model and self.kind != "bpe":
            raise ValueError("model is a SentencePiece model, so kind must be bpe")
        if self.dropout and self.kind != "bpe":
            raise ValueError("dropout skips merges of byte pairs, so kind must be bpe")
        if self.segmentations > 1 and not self.dropout:
            raise ValueError("segmentations above 1 require dropout above 0")
        return self

    @model_validator(mode="after")
    def _check_sides(self):
        if self.shared:
            for name in ("source_vocabulary_size", "source_model"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} requires shared: false")
            return self
        if self.kind == "marian":
            raise ValueError("shared: false requires kind: bpe or kind: word_piece")
        if (self.model is None) != (self.source_model is None):
            raise ValueError(
                "with shared: false, set both model (for the target) and source_model, "
                "or neither"
            )
        if self.source_vocabulary_size is None:
            self.source_vocabulary_size = self.vocabulary_size
        return self


def source_embedding_rows(recipe):
    """Returns the number of rows of a separate source embedding matrix.

    If source and target share one matrix, returns `None`.

    Args:
        recipe: A `Recipe`.

    Raises:
        ValueError: If the tokenizer settings conflict with the data or the model.
    """
    tokenizer, variations = recipe.tokenizer, recipe.model.variations
    size = variations and variations.source_vocabulary_size
    key = "vocabulary_size" if tokenizer.shared else "source_vocabulary_size"
    expected = getattr(tokenizer, key)
    if size not in (None, expected):
        raise ValueError(
            f"{_SIZE_KEY} must be null or equal tokenizer.{key}. "
            f"Received: {size} and {expected}."
        )
    if tokenizer.shared:
        return size
    if recipe.data.kind == "trees":
        raise ValueError(
            "data.kind: trees requires tokenizer.shared: true, since one vocabulary "
            "contains words and symbols"
        )
    if any(stage.text_options.directions == "both" for stage in stages_of(recipe)):
        raise ValueError(
            "directions: both requires tokenizer.shared: true, since each language is "
            "both source and target"
        )
    return expected
