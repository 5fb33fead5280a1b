"""Every layer passes the checks of layer_checks.py, on sequences of unequal lengths."""

import numpy as np
import pytest
from layer_checks import Case, check_layer, check_structure

from keras_transformer import layers
from keras_transformer.layers.base import Dense

GENERATOR = np.random.default_rng(4)
X = GENERATOR.normal(size=(2, 5, 7)).astype("float32")
VALUE = GENERATOR.normal(size=(2, 3, 11)).astype("float32")
KEY = GENERATOR.normal(size=(2, 3, 13)).astype("float32")
SOURCE = GENERATOR.normal(size=(2, 6, 7)).astype("float32")
MASK = np.arange(5) < np.array([[5], [3]])
SOURCE_MASK = np.arange(6) < np.array([[3], [6]])
# Row 0 attends to keys 0 and 2; row 1 to all, except that queries 1 and 3 skip key 0.
ATTENTION_MASK = np.ones((2, 5, 3), bool)
ATTENTION_MASK[0, :, 1] = False
ATTENTION_MASK[1, [1, 3], 0] = False

HEADS = {"num_heads": 3, "key_dim": 5, "dropout": 0.1}
WIDTHS = {**HEADS, "value_dim": 2, "output_dim": 17}
ADDITIVE = {**HEADS, "score_mode": "additive"}  # has weights of its own
RELATIVE = {**WIDTHS, "positions": "relative", "max_distance": 2}
ROTARY = {**HEADS, "key_dim": 4, "positions": "rotary"}
WINDOW = {**HEADS, "value_dim": 2, "window": 4}
LAYER = {**HEADS, "d_ff": 13, "value_dim": 2, "attention_dropout": 0.2}
STACK = {"num_layers": 1, **LAYER, "normalization": "pre"}
ADD_NORM = {"dropout": 0.3, "layer_norm_epsilon": 1e-5}
# `build` turns a single axis into a list, and the config must not change.
NORM = {"epsilon": 1e-6, "axis": [-1]}
LEARNED = {"kind": "learned", "max_length": 11}
EMBEDDING = {"vocabulary_size": 11, "d_model": 7, "pad_id": 1}

INPUTS = {"inputs": X}
IDS = {"inputs": np.array([[5, 2, 10], [3, 0, 0]], "int32")}
SUMMANDS = {"inputs": X, "sublayer_output": X[::-1].copy()}
QUERY = {"query": X, "value": VALUE, "key": KEY, "attention_mask": ATTENTION_MASK}
ALL_TOKENS = np.ones((2, 1, 5), bool)
ITSELF = {"query": X, "value": X[::-1].copy(), "attention_mask": ALL_TOKENS}
SOURCES = {"inputs": X, "attention_mask": MASK[:, None]}
TARGETS = {"inputs": X, "encoder_output": SOURCE, "source_mask": SOURCE_MASK}

# Layers with their arguments and inputs, the width of the output, and the numbers of
# weights and of dropouts. Weights: 4 in each attention, 4 in the feed-forward network,
# and 2 in each normalization. Dropouts: 1 in each attention, and 1 after each sublayer.
CASES = {
    "dense": (Dense, {"units": 4}, INPUTS, 4, 2, 0),
    "feed-forward": (layers.FeedForward, {"d_ff": 13}, INPUTS, 7, 4, 0),
    "add-norm": (layers.AddNorm, ADD_NORM, SUMMANDS, 7, 2, 1),
    "norm": (layers.LayerNormalization, NORM, INPUTS, 7, 2, 0),
    "sinusoids": (layers.PositionalEncoding, {}, INPUTS, 7, 0, 0),
    "learned": (layers.PositionalEncoding, LEARNED, INPUTS, 7, 1, 0),
    "embedding": (layers.TokenEmbedding, EMBEDDING, IDS, 7, 1, 0),
    "attention": (layers.MultiHeadAttention, WIDTHS, QUERY, 17, 4, 1),
    "additive": (layers.MultiHeadAttention, ADDITIVE, QUERY, 7, 5, 1),
    "relative": (layers.MultiHeadAttention, RELATIVE, QUERY, 17, 6, 1),
    "rotary": (layers.MultiHeadAttention, ROTARY, QUERY, 7, 4, 1),
    "restricted": (layers.RestrictedSelfAttention, WINDOW, ITSELF, 7, 4, 1),
    "encoder layer": (layers.EncoderLayer, LAYER, SOURCES, 7, 12, 3),
    "decoder layer": (layers.DecoderLayer, LAYER, TARGETS, 7, 18, 5),
}
# A pre-norm stack ends with a normalization.
STACKS = {
    "encoder": (layers.Encoder, STACK, {"inputs": X, "source_mask": MASK}, 14, 3),
    "decoder": (layers.Decoder, STACK, TARGETS, 20, 5),
}


@pytest.mark.parametrize("name", CASES)
def test_layer_passes_all_checks(name):
    cls, kwargs, inputs, width, num_weights, num_dropouts = CASES[name]
    first = next(iter(inputs.values()))
    shape = (*first.shape[:2], width)
    check_layer(cls, kwargs, inputs, shape, num_weights, num_dropouts)


@pytest.mark.parametrize("name", STACKS)
def test_stack_passes_checks_of_its_structure(name):
    cls, kwargs, inputs, *numbers = STACKS[name]
    check_structure(Case(cls, kwargs, inputs), (2, 5, 7), *numbers)
