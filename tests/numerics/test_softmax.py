"""Softmax with masks, and weighted sums of values, against NumPy in float64.

`weighted_values` takes the keys' logits and the values in one or two parts, such as the
parts of a decoder's cache, and applies one softmax to all of them.
"""

import numpy as np
import pytest
from keras import ops
from layer_checks import gradient, numpy

from keras_transformer.numerics.softmax import (
    best_log_probs,
    mask_to_bias,
    masked_softmax,
    weighted_values,
)

GENERATOR = np.random.default_rng(4)


def softmax(logits, mask=True):
    """Returns the softmax over the last axis; zeros for a row without allowed keys."""
    logits = np.where(mask, logits.astype("float64"), -np.inf)
    largest = logits.max(axis=-1, keepdims=True)
    powers = np.exp(logits - np.where(np.isfinite(largest), largest, 0))
    totals = powers.sum(axis=-1, keepdims=True)
    return powers / np.where(totals, totals, 1)


def random_mask(shape):
    """Returns a mask that allows about 60% of the keys, and none in one row."""
    mask = GENERATOR.random(shape) < 0.6
    mask[1, 0, 2] = False
    return mask


@pytest.mark.parametrize("scale", [1, 30])
@pytest.mark.parametrize("source_length", [1, 4])
def test_masked_softmax_matches_numpy(scale, source_length):
    shape = (2, 3, 5, source_length)
    logits = (GENERATOR.normal(size=shape) * scale).astype("float32")
    for mask in (None, random_mask((2, 1, 5, source_length))):
        scores = numpy(masked_softmax(ops.array(logits), mask))
        expected = softmax(logits, True if mask is None else mask)
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-7)
        assert (scores[expected == 0] == 0).all()


def test_masked_softmax_gradient_is_its_jacobian():
    """The Jacobian of a row of weights w is `diag(w) - w w^T`; masked keys have 0."""
    logits = GENERATOR.normal(size=(2, 3, 5, 4)).astype("float32")
    upstream = GENERATOR.normal(size=logits.shape).astype("float32")
    mask = random_mask((2, 1, 5, 4))
    weights = ops.convert_to_tensor(upstream)
    found = gradient(lambda x: ops.sum(masked_softmax(x, mask) * weights), logits)
    scores = softmax(logits, mask)
    for row in np.ndindex(logits.shape[:3]):
        weights = scores[row]
        jacobian = np.diag(weights) - np.outer(weights, weights)
        np.testing.assert_allclose(found[row], jacobian @ upstream[row], atol=1e-6)
        assert (found[row][weights == 0] == 0).all()


def test_mask_to_bias_leaves_allowed_logits_and_hides_the_others():
    """Allowed logits stay bit-identical, and weights of masked keys are exactly 0."""
    logits = GENERATOR.normal(size=(5, 7)).astype("float32") * 9
    mask = GENERATOR.random((5, 7)) < 0.5
    mask[:, 3] = True
    biased = logits + numpy(mask_to_bias(ops.array(mask)))
    np.testing.assert_array_equal(biased[mask], logits[mask])
    weights = numpy(weighted_values([ops.array(biased)], [ops.eye(7)]))
    assert (weights[~mask] == 0).all()
    np.testing.assert_allclose(weights, softmax(logits, mask), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("sizes", [(5,), (1,), (4, 3), (0, 3), (3, 1)])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.03), ("float16", 4e-3)]
)
def test_weighted_values_match_one_softmax_over_all_parts(sizes, dtype, tolerance):
    logits = [GENERATOR.normal(size=(2, 3, 2, n)) * 30 for n in sizes]
    values = [GENERATOR.normal(size=(2, 3, n, 6)) for n in sizes]
    logits = [each.astype("float32") for each in logits]
    found = weighted_values(
        [ops.array(each) for each in logits],
        [ops.cast(each.astype("float32"), dtype) for each in values],
    )
    assert found.dtype == ops.cast(0.0, dtype).dtype
    scores = softmax(np.concatenate(logits, axis=-1))
    expected = scores @ np.concatenate(values, axis=-2)
    np.testing.assert_allclose(numpy(found), expected, rtol=tolerance, atol=tolerance)


def test_weighted_values_do_not_overflow():
    """Either part may contain a logit whose exponential would overflow."""
    for large in ([1e4, 0.0], [0.0, 1e4]):
        logits = [ops.full((1, 1, 1, 2), each) for each in large]
        values = [ops.ones((1, 1, 2, 3)) * each for each in (1.0, 2.0)]
        found = numpy(weighted_values(logits, values))
        np.testing.assert_array_equal(found, np.full(found.shape, 1 + large.index(1e4)))


@pytest.mark.parametrize("size", [1023, 1024])
@pytest.mark.parametrize("uses_softmax", [True, False])
@pytest.mark.parametrize("has_largest", [True, False])
def test_best_log_probs_match_log_softmax(size, uses_softmax, has_largest):
    logits = (GENERATOR.normal(size=(5, size)) * 4 + 60).astype("float32")
    tokens = np.argsort(-logits)[:, 0 if has_largest else 1 :][:, :3].astype("int32")
    best = np.take_along_axis(logits, tokens, axis=1)
    expected = np.take_along_axis(np.log(softmax(logits)), tokens, axis=1)
    for rows in (slice(None), slice(2, 3)):
        found = best_log_probs(
            *map(ops.convert_to_tensor, (logits[rows], best[rows], tokens[rows])),
            has_largest,
            uses_softmax,
        )
        np.testing.assert_allclose(numpy(found), expected[rows], rtol=1e-5, atol=1e-5)
