"""`Dropout`: distribution of the dropped units, and agreement with Keras's layer."""

import keras
import numpy as np
import pytest
from keras import ops
from layer_checks import (
    Case,
    check_config,
    check_layer_saving,
    check_mixed_precision,
    check_symbolic_output,
    check_unknown_lengths,
    gradient,
    numpy,
)

from keras_transformer.layers import Dropout


def test_dropout_passes_layer_checks():
    """Runs the checks that apply to a layer without weights and sublayers.

    `check_build` does not apply either: Keras builds a `Dropout` in the constructor.
    """
    case = Case(Dropout, {"rate": 0.3}, {"inputs": np.ones((2, 5, 7), "float32")})
    check_config(case)
    check_symbolic_output(case, (2, 5, 7))
    check_layer_saving(case)
    check_mixed_precision(case)
    check_unknown_lengths(case)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_drops_at_rate_and_keeps_the_mean(rate):
    """Units are dropped with probability `rate`; the others are scaled up."""
    x = np.full((1001, 999), 2.0, "float32")  # an odd number of units
    y = numpy(Dropout(rate, seed=3)(x, training=True))
    dropped = y == 0
    # Five standard deviations of a binomial proportion over a million units.
    bound = 5 * np.sqrt(rate * (1 - rate) / x.size)
    assert abs(dropped.mean() - rate) < bound
    np.testing.assert_allclose(y[~dropped], 2 / (1 - rate), rtol=2e-4)
    # Each random number determines two units, which must be independent. If they are,
    # the fractions of dropped units per row and per column have the standard deviation
    # of a binomial proportion.
    for axis in (0, 1):
        share = dropped.mean(axis)
        expected = np.sqrt(rate * (1 - rate) / dropped.shape[axis])
        assert share.std() == pytest.approx(expected, rel=0.15)


def test_dropout_of_neighbors_is_independent():
    dropped = numpy(Dropout(0.5, seed=5)(np.ones(10**6, "float32"), training=True)) == 0
    for distance in (1, 2, 3):
        both = (dropped[distance:] & dropped[:-distance]).mean()
        assert both == pytest.approx(0.25, abs=0.003)


def test_dropout_gradient_reaches_kept_units_only():
    x = np.random.default_rng(1).normal(size=(40, 30)).astype("float32")
    y = numpy(Dropout(0.25, seed=1)(x, training=True))
    assert 0.1 < (y == 0).mean() < 0.4
    layer = Dropout(0.25, seed=1)
    found = gradient(lambda x: ops.sum(layer(x, training=True) * 3.0), x)
    np.testing.assert_allclose(found, np.where(y == 0, 0.0, 3 / 0.75), rtol=1e-4)


def test_dropout_matches_keras_arguments_and_state():
    """With `noise_shape`, the mask is shared along an axis, and Keras draws it."""
    ours, theirs = Dropout(0.3, seed=7), keras.layers.Dropout(0.3, seed=7)
    assert {**ours.get_config(), "name": 0} == {**theirs.get_config(), "name": 0}
    np.testing.assert_array_equal(
        numpy(ours.seed_generator.state), numpy(theirs.seed_generator.state)
    )
    x = np.ones((4, 6, 8), "float32")
    y = numpy(Dropout(0.5, noise_shape=(4, 1, 8), seed=7)(x, training=True))
    np.testing.assert_array_equal(y, np.broadcast_to(y[:, :1], y.shape))
    assert numpy(Dropout(1.0)(x, training=True)).max() == 0


def test_dropout_draws_differ_and_repeat_by_seed():
    x = ops.ones((100,))
    layer, again = Dropout(0.5, seed=11), Dropout(0.5, seed=11)
    first, second = (numpy(layer(x, training=True)) for _ in range(2))
    assert (first != second).any()
    np.testing.assert_array_equal(first, numpy(again(x, training=True)))
    np.testing.assert_array_equal(numpy(layer(x, training=False)), numpy(x))
