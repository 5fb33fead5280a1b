"""Recipes whose source and target have separate vocabularies."""

import pytest
from recipe_errors import recipe_error

from keras_transformer.recipes import load_recipe
from keras_transformer.recipes.automatic import choose
from keras_transformer.recipes.machine import Machine
from keras_transformer.recipes.training_text import TextSize

SEPARATE = (
    "tokenizer={shared: false, vocabulary_size: 380, source_vocabulary_size: 370}"
)


def test_source_embeddings_follow_the_vocabulary():
    recipe = load_recipe("phrases", [SEPARATE])
    assert recipe.model.variations.source_vocabulary_size == 370
    recipe = load_recipe("phrases", ["tokenizer.shared=false"])
    # By default, it equals the recipe's `vocabulary_size`.
    assert recipe.tokenizer.source_vocabulary_size == 656
    assert recipe.model.variations.source_vocabulary_size == 656
    assert load_recipe("phrases").model.variations is None


def test_automatic_size_leaves_room_for_both_vocabularies():
    """Half of the 80 characters and 1,000 words are counted for each vocabulary."""
    sizes = []
    for shared in (True, False):
        values = {"tokenizer": {"vocabulary_size": "auto", "shared": shared}}
        text = TextSize(pairs=60_000, bytes=9_000_000, characters=80, words=1_000)
        choose(values, ["tokenizer.vocabulary_size"], text, Machine(2, None))
        sizes.append(values["tokenizer"]["vocabulary_size"])
    # 260 ids are special or single bytes.
    assert sizes == [260 + 80 + 1_000, 260 + 540]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["tokenizer.source_model=a"], "both model (for the target) and source_model"),
        (
            ["tokenizer.shared=true"],
            "source_vocabulary_size requires shared: false",
        ),
        (
            ["model.variations={source_vocabulary_size: 9}"],
            "must be null or equal tokenizer.source_vocabulary_size. "
            "Received: 9 and 370",
        ),
        (
            ["data={train: {source: a, target: b, directions: both}}"],
            "directions: both requires tokenizer.shared: true",
        ),
        (
            ["training.stages=[{steps: 1, directions: both}]"],
            "directions: both requires tokenizer.shared: true",
        ),
        (
            ["data={kind: trees, train: {trees: a}}"],
            "data.kind: trees requires",
        ),
        (
            ["tokenizer.kind=marian"],
            "shared: false requires kind: bpe or kind: word_piece",
        ),
    ],
)
def test_load_recipe_rejects_impossible_vocabularies(overrides, message):
    assert message in recipe_error("phrases", SEPARATE, *overrides)
