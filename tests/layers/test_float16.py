"""Attention in float16 against float32, for values beyond float16's limit of 65,504."""

import keras
import numpy as np
import pytest
from keras import ops
from layer_checks import numpy
from small_transformers import built

from keras_transformer.decoding.incremental import IncrementalDecoder, arrange_weights
from keras_transformer.layers import MultiHeadAttention, RestrictedSelfAttention
from keras_transformer.numerics.softmax import weighted_values

GENERATOR = np.random.default_rng(8)
LARGEST = float(np.finfo("float16").max)


@pytest.mark.parametrize("score_mode", ["scaled_dot", "dot"])
@pytest.mark.parametrize("cls", [MultiHeadAttention, RestrictedSelfAttention])
@pytest.mark.parametrize("policy", ["mixed_float16", "float16"])
def test_attention_logits_do_not_overflow_in_float16(cls, score_mode, policy):
    options = {"num_heads": 2, "key_dim": 16, "score_mode": score_mode}
    if cls is RestrictedSelfAttention:
        options["window"] = 5
    x = (GENERATOR.normal(size=(2, 6, 32)) * 1000).astype("float16")
    exact, half = cls(**options), cls(**options, dtype=policy)
    for layer in (exact, half):
        layer.build(x.shape, x.shape)
    weights = [np.float16(w) for w in exact.get_weights()]
    exact.set_weights(weights)
    half.set_weights(weights)
    options = {"return_attention_scores": True}
    expected = exact(*[ops.array(x.astype("float32"))] * 2, **options)
    found = half(*[ops.array(x)] * 2, **options)
    query, key = (exact.split_heads(d(x)) for d in (exact.query_dense, exact.key_dense))
    logits = numpy(exact.attention_logits(query, key))
    assert np.abs(logits).max() > LARGEST
    assert np.isfinite(numpy(found[0])).all()
    # The largest logit of a row is far above the others, so rounding does not matter.
    np.testing.assert_allclose(numpy(found[1]), numpy(expected[1]), atol=1e-3)


def test_additive_logits_do_not_overflow_in_float16():
    """Each logit is a sum of 16 products 10000 tanh(2), in total 154,244."""
    layer = MultiHeadAttention(2, 16, score_mode="additive", dtype="float16")
    layer.build((1, 3, 32), (1, 3, 32))
    layer.score_weights.assign(ops.full((2, 16), 10000.0))
    ones = ops.ones((1, 2, 3, 16), "float16")
    logits = layer.attention_logits(ones, ones)
    expected = np.full((1, 2, 3, 3), 160000 * np.tanh(2.0))
    np.testing.assert_allclose(numpy(logits), expected, rtol=1e-4)


def test_weighted_values_do_not_overflow_in_float16():
    """The unnormalized sum is 3,000,000: 100 keys with weight 1 and value 30,000."""
    logits = [ops.zeros((1, 1, 1, 60)), ops.zeros((1, 1, 1, 40))]
    values = [ops.full((1, 1, n, 3), 30000.0, "float16") for n in (60, 40)]
    found = weighted_values(logits, values)
    assert keras.backend.standardize_dtype(found.dtype) == "float16"
    np.testing.assert_allclose(numpy(found), 30000, rtol=2e-3)


def test_decoding_step_does_not_overflow_in_float16():
    model = built(11, 2, d_model=8, d_ff=12, num_heads=2, dtype="mixed_float16")
    # Scale queries and keys so that their products exceed the range.
    for layer in model.decoder.layers:
        for attention in (layer.self_attention, layer.cross_attention):
            for dense in (attention.query_dense, attention.key_dense):
                dense.kernel.assign(dense.kernel * 1000)
    decoder = IncrementalDecoder(model, arrange_weights(model))
    source_ids = ops.array([[5, 6, 3]], "int32")
    cache, context = decoder.begin(source_ids, max_length=3)
    ids, found = [2, 7, 8], []
    for index, each in enumerate(ids):
        each = ops.array([[each]], "int32")
        logits, cache = decoder.step(each, cache, context, ops.array(index, "int32"))
        found.append(numpy(logits)[0])
    inputs = {"source_ids": source_ids, "target_ids": ops.array([ids], "int32")}
    expected = numpy(model(inputs, training=False))[0]
    assert np.isfinite(found).all() and np.isfinite(expected).all()
    np.testing.assert_allclose(found, expected, atol=0.03)
