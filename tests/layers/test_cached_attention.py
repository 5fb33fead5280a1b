"""Attention as decoding takes it: one product, rows of two axes, a bias for masks."""

import keras
import numpy as np
import pytest
from keras import ops
from layer_checks import numpy
from layer_checks import randomize

from keras_transformer.layers import MultiHeadAttention
from keras_transformer.layers.cached_attention import source_bias
from keras_transformer.numerics.softmax import logit_bias
from keras_transformer.numerics.softmax import softmax_of_few

X = np.random.default_rng(4).normal(size=(2, 6, 11)).astype("float32")


def built(*args, **kwargs):
    layer = MultiHeadAttention(*args, **kwargs)
    layer.build(X.shape, X.shape)
    randomize(layer)
    return layer


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("value_dim", [2, 5, None])
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_one_product_of_queries_keys_and_values(use_bias, value_dim, dtype):
    """The same as three, whatever their widths."""
    layer = built(*(3, 5, value_dim), use_bias=use_bias, dtype=dtype)
    x = ops.cast(X, layer.compute_dtype)
    kernel = layer.joined_kernel()
    assert kernel["kernel"].shape == (11, 3 * (5 + 5 + (value_dim or 5)))
    of_three, of_one = (
        layer.call_with_cache(x, layer.init_cache(2), 0, kernel=each)
        for each in (None, kernel)
    )
    tolerance = 1e-5 if dtype == "float32" else 0.05
    for three, one in zip(*map(keras.tree.flatten, (of_three, of_one)), strict=True):
        np.testing.assert_allclose(
            numpy(ops.cast(one, "float32")),
            numpy(ops.cast(three, "float32")),
            rtol=tolerance,
            atol=tolerance,
        )


def test_a_quantized_layer_joins_nothing():
    layer = built(3, 5)
    assert layer.joined_kernel() is not None
    layer.value_dense.quantize("int8")
    assert layer.joined_kernel() is None


@pytest.mark.parametrize("mask", [None, "bool", "bias"])
def test_rows_of_two_axes_look_at_the_source_alike(mask):
    """Three hypotheses of each sentence, as queries of it and as rows of their own."""
    layer = built(3, 5, 2, output_dim=4)
    source = np.random.default_rng(5).normal(size=(2, 4, 11)).astype("float32")
    seen = np.array([[True, True, False, True], [False, True, True, False]])
    queries = X[:, :3]
    expected = layer(queries, source, attention_mask=mask and seen[:, None])
    given = {"bool": seen, "bias": source_bias(ops.convert_to_tensor(seen))}.get(mask)
    context = layer.project_key_value(source)
    for rows in (queries, queries.reshape(6, 11)):
        found = layer.call_with_context(ops.array(rows), context, given, beam_size=3)
        assert tuple(found.shape) == (*rows.shape[:-1], 4)
        np.testing.assert_allclose(
            numpy(found).reshape(2, 3, 4), numpy(expected), rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("max_length", [None, 6])
def test_steps_of_rows_of_two_axes_equal_a_causal_mask(max_length):
    layer = built(3, 5, 2)
    expected = numpy(layer(X, X, use_causal_mask=True))
    cache = layer.init_cache(2, max_length)
    for index in range(6):
        output, cache = layer.call_with_cache(ops.array(X[:, index]), cache, index)
        assert tuple(output.shape) == (2, 11)
        np.testing.assert_allclose(
            numpy(output), expected[:, index], rtol=1e-3, atol=1e-5
        )


def test_a_bias_leaves_masked_keys_nothing():
    """And the others their logits, to the last digit."""
    logits = np.random.default_rng(6).normal(size=(5, 7)).astype("float32") * 9
    mask = np.random.default_rng(7).random((5, 7)) < 0.5
    assert mask.any(axis=1).all() and not mask.all()
    biased = logits + numpy(logit_bias(ops.array(mask)))
    np.testing.assert_array_equal(biased[mask], logits[mask])
    scores = numpy(softmax_of_few(ops.array(biased)))
    assert (scores[~mask] == 0).all()
    np.testing.assert_allclose(scores.sum(axis=1), 1, rtol=1e-6)
