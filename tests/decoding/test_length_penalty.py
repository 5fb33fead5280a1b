"""Length penalties against their formulas, worked out by hand.

"gnmt" is ((5 + length) / 6)^alpha (section 6.1), and "power" is length^alpha.
"""

import math
import re

import numpy as np
import pytest

from keras_transformer.decoding.length_penalty import get_length_penalty


def test_gnmt_matches_hand_calculation():
    penalty = get_length_penalty("gnmt", 0.5)
    np.testing.assert_allclose(penalty(np.array([1, 19])), [1.0, 2.0], rtol=1e-6)


def test_power_matches_hand_calculation():
    penalty = get_length_penalty("power", 1.5)
    np.testing.assert_allclose(penalty(np.array([1, 4, 9])), [1, 8, 27], rtol=1e-6)


@pytest.mark.parametrize("kind", ["gnmt", "power"])
def test_penalty_is_one_if_alpha_is_0(kind):
    penalty = get_length_penalty(kind, 0)
    np.testing.assert_array_equal(penalty(np.array([1, 7, 50])), [1, 1, 1])


@pytest.mark.parametrize("alpha", [-0.1, math.inf, math.nan])
def test_penalty_rejects_an_alpha_that_is_negative_or_not_finite(alpha):
    message = f"at least 0 and finite. Received: length_penalty={alpha}"
    with pytest.raises(ValueError, match=re.escape(message)):
        get_length_penalty("gnmt", alpha)


def test_penalty_rejects_an_unknown_kind():
    with pytest.raises(ValueError, match=r"gnmt.*power.*'google'"):
        get_length_penalty("google", 0.6)
