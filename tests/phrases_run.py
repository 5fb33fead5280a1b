"""Settings of a small training on the embedded phrases, for several tests."""

from keras_transformer.recipes import load_recipe

DATA_AND_MODEL = [
    "data.size=900",
    "data.held_out=20",
    "tokenizer.vocabulary_size=380",
    "model.num_layers=1",
    "model.d_model=16",
    "model.d_ff=24",
    "model.num_heads=2",
    "model.key_dim=8",
    "model.value_dim=8",
]
SMALL = [
    *DATA_AND_MODEL,
    "model.dropout=0.2",
    "training.steps=8",
    "training.checkpoint_steps=3",
    "training.keep_checkpoints=2",
    "training.average_checkpoints=2",
    "training.validation_steps=4",
    "training.validation_sentences=3",
    "decoding={beam_size: 4, length_penalty: 0.6, extra_length: 7}",
    # Validation during training is greedy. With beam size 1, the final validation uses
    # the same search, so no second search is traced.
    "decoding.beam_size=1",
]


def small_recipe(*overrides):
    """Returns the recipe `phrases` with the settings `SMALL` and the given ones."""
    return load_recipe("phrases", [*SMALL, *overrides])
