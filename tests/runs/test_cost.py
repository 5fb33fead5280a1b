"""Computed numbers of floating-point operations against counts of a model's weights."""

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.runs.cost import forward_flops, training_flops

SETTINGS = {
    "num_layers": 2,
    "d_model": 12,
    "d_ff": 20,
    "num_heads": 3,
    "key_dim": 5,
    "value_dim": 7,
}
VOCABULARY = 31


def count_kernel_weights(part):
    """Returns the number of weights in the kernels of a part of a model."""
    return sum(np.prod(w.shape) for w in part.weights if len(w.shape) > 1)


@pytest.mark.parametrize(("source", "target"), [([1], [1]), ([4, 1, 9], [3, 8, 2])])
def test_forward_flops_match_weights_and_positions(source, target):
    model = kt.Transformer(VOCABULARY, **SETTINGS)
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    source, target = np.array(source), np.array(target)
    # Cross-attention (2 layers, 3 heads) projects the source to keys and values. These
    # weights of the decoder therefore multiply source tokens.
    source_weights = 2 * 3 * 12 * (5 + 7)
    # Each weight costs a multiplication and an addition per token.
    expected = 2 * source.sum() * (count_kernel_weights(model.encoder) + source_weights)
    expected += (
        2
        * target.sum()
        * (count_kernel_weights(model.decoder) - source_weights + 12 * VOCABULARY)
    )
    # Per head and pair of positions, attention in each of the 2 layers has a product of
    # length key_dim and one of length value_dim.
    pairs = (source**2 + target**2 + source * target).sum()
    expected += 2 * 2 * pairs * 3 * (5 + 7)
    found = forward_flops(SETTINGS, VOCABULARY, source, target)
    # The backward pass costs twice as much as the forward pass.
    assert found == pytest.approx(expected)
    assert training_flops(SETTINGS, VOCABULARY, source, target) == 3 * found


def test_training_flops_of_base_match_usual_estimate():
    """The usual estimate is 6 operations per weight and token.

    The encoder has 40 x 25 source tokens, and the decoder as many target tokens.
    """
    settings = kt.SIZES["base"]
    found = training_flops(settings, 37_000, [25] * 40, [25] * 40)
    encoder = 6 * (4 * 512**2 + 2 * 512 * 2048)
    decoder = 6 * (8 * 512**2 + 2 * 512 * 2048) + 512 * 37_000
    assert found == pytest.approx(6 * 1000 * (encoder + decoder), 0.02)


def test_attention_window_reduces_forward_flops():
    def cost(length, **changes):
        settings = {**SETTINGS, **changes}
        return forward_flops(settings, VOCABULARY, [length], [length])

    assert cost(9, attention_window=9) == cost(9) == cost(9, attention_window=None)
    # Each self-attention, 2 in the encoder and 2 in the decoder, has 4 instead of 9
    # keys for each of 9 queries, so it saves 9 x 5 pairs.
    less = 2 * 2 * 9 * 5 * 2 * 3 * (5 + 7)
    assert cost(9) - cost(9, attention_window=4) == less
