"""Accepted and derived values of search settings."""

import numpy as np
import pytest

from keras_transformer.decoding import BeamSearch, Sampling, SpecialIds


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 0}, "beam_size=0"),
        ({"extra_length": -1}, "extra_length=-1"),
        ({"length_penalty": -1.0}, "length_penalty=-1.0"),
        ({"length_penalty": float("nan")}, "length_penalty=nan"),
        ({"length_penalty": float("inf")}, "at least 0 and finite"),
        ({"length_penalty_kind": "x"}, "gnmt.*power.*length_penalty_kind='x'"),
        ({"coverage_penalty": -0.5}, "coverage_penalty=-0.5"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size=-1"),
        ({"min_length": -1}, "min_length=-1"),
        ({"repetition_penalty": 0}, "`repetition_penalty` must be above 0"),
        ({"max_length_ratio": 0.0}, "`max_length_ratio` must be above 0"),
        ({"patience": 0}, "`patience` must be above 0.*patience=0"),
        ({"patience": -1.0}, "`patience` must be above 0"),
        ({"patience": float("nan")}, "`patience` must be above 0"),
    ],
)
def test_beam_search_rejects_settings_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        BeamSearch(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 0}, "num_samples=0"),
        ({"extra_length": -1}, "extra_length=-1"),
        ({"temperature": 0.0}, "temperature=0.0.*top_k=1"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"temperature": float("inf")}, "temperature=inf"),
        ({"temperature": 1e-39}, "temperature=1e-39"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.1}, "top_p=1.1"),
        ({"top_p": float("nan")}, "top_p=nan"),
    ],
)
def test_sampling_rejects_settings_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


def test_defaults_match_the_paper():
    """Section 6.1: beam size 4, alpha 0.6, and the input length plus 50."""
    assert BeamSearch() == BeamSearch(4, 0.6, "gnmt", None, 50)
    # Samples come from the model's whole distribution.
    assert Sampling() == Sampling(1, 1.0, None, None, None, 50)


@pytest.mark.parametrize(
    ("kind", "alpha", "lengths", "penalties"),
    [
        ("gnmt", 0.5, [1, 19], [1, 2]),
        ("power", 1.5, [1, 4, 9], [1, 8, 27]),
        ("gnmt", 0.0, [1, 7, 50], [1, 1, 1]),
        ("power", 0.0, [1, 7, 50], [1, 1, 1]),
    ],
)
def test_penalty_matches_hand_calculation(kind, alpha, lengths, penalties):
    found = BeamSearch(4, alpha, kind).penalty(np.array(lengths))
    np.testing.assert_allclose(found, penalties, rtol=1e-6)


def test_special_ids_exclude_all_but_the_end():
    assert set(SpecialIds().excluded_ids()) == {0, 1, 2}
    # An id that is used twice counts once, and a missing one not at all.
    assert SpecialIds(pad=5, start=5, unknown=None).excluded_ids() == (5,)
    # Models of fairseq start with the end id.
    assert SpecialIds(start=7, end=7).excluded_ids() == (0, 1)
    for ids in (SpecialIds(pad=7, end=7), SpecialIds(unknown=7, start=7, end=7)):
        with pytest.raises(ValueError, match="end=7"):
            ids.excluded_ids()
