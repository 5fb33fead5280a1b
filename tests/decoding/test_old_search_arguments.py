"""Keyword arguments of version 0.1 warn and give the same results as the new ones."""

import contextlib
import re
import warnings

import keras
import numpy as np
import pytest
from decoding_oracles import END
from decoding_oracles import START
from decoding_oracles import random_tables
from decoding_oracles import table_cache
from decoding_oracles import table_step

import keras_transformer as kt
from keras_transformer.decoding import BeamSearch
from keras_transformer.decoding import Sampling
from keras_transformer.decoding import SpecialIds
from keras_transformer.decoding import beam_search
from keras_transformer.decoding import sample
from keras_transformer.decoding import sample_ids
from keras_transformer.decoding import translate_ids
from keras_transformer.decoding.loop import StepDecoder
from keras_transformer.decoding.loop import take_rows

TABLES = random_tables(seed=3, batch=5, vocabulary=9)
SOURCES = np.array([[5, 6, 4, END], [6, END, 0, 0]], "int32")


def start(rows):
    return {
        "cache": table_cache(len(TABLES), rows),
        "context": {"tables": TABLES},
        "batch_size": len(TABLES),
        "max_length": 9,
    }


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.array(one), np.array(other))


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(7)
    model = kt.Transformer(13, num_layers=1, d_model=8, d_ff=12, num_heads=2)
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    for weight in model.trainable_weights:
        weight.assign(weight * 2.0)
    return model


@contextlib.contextmanager
def deprecated(pattern):
    """Expects deprecation warnings, at least one of which matches `pattern`."""
    with pytest.warns(DeprecationWarning) as caught:
        yield
    assert any(re.search(pattern, str(each.message)) for each in caught)


def test_beam_search_accepts_old_settings():
    with deprecated(r"search=BeamSearch\(patience"):
        found = beam_search(
            table_step(3),
            **start(3),
            beam_size=3,
            length_penalty=1.0,
            length_penalty_kind="power",
            patience=1.0,
            n_best=2,
            compaction=False,
        )
    settings = BeamSearch(3, 1.0, "power", 1.0)
    expected = beam_search(
        table_step(3), **start(3), search=settings, n_best=2, drop_finished=False
    )
    assert_same(found, expected)


def test_beam_search_accepts_old_functions():
    """All functions are called, and without `normalized` the scores would differ."""
    calls = []

    def reorder(cache, parents):
        calls.append("reorder")
        return take_rows(cache, parents)

    def settle(cache):
        calls.append("settle")
        return cache

    def log_probs(*arguments):
        logits, cache = table_step(3)(*arguments)
        return keras.ops.log_softmax(logits) - 1.0, cache

    with deprecated(r"`decoder=StepDecoder\(reorder=\.\.\.\)`"):
        found = beam_search(
            **start(3),
            next_token_logits=log_probs,
            reorder_cache=reorder,
            settle_cache=settle,
            normalized=True,
            beam_size=3,
        )
    assert set(calls) == {"reorder", "settle"}
    decoder = StepDecoder(log_probs, returns_log_probs=True)
    assert_same(found, beam_search(decoder, **start(3), search=BeamSearch(3)))
    decoder = StepDecoder(log_probs)
    other = beam_search(decoder, **start(3), search=BeamSearch(3))
    assert (np.array(other[1]) != np.array(found[1])).all()


def test_warning_names_the_callers_line():
    with pytest.warns(DeprecationWarning) as caught:
        beam_search(table_step(3), **start(3), beam_size=3, compaction=False, pad_id=0)
    # One warning for each old argument.
    assert len(caught) == 3
    assert {each.filename for each in caught} == {__file__}


@pytest.mark.parametrize(
    ("old", "ids", "new"),
    [
        ({"pad_id": 1, "forbidden_ids": (0,)}, SpecialIds(1, 0, START, END), "pad"),
        ({"start_id": 5, "end_id": 4}, SpecialIds(start=5, end=4), "end"),
        ({"forbidden_ids": ()}, SpecialIds(unknown=None), "unknown"),
    ],
)
def test_beam_search_accepts_old_ids(old, ids, new):
    with deprecated(rf"Use `ids=SpecialIds\({new}=\.\.\.\)`"):
        found = beam_search(table_step(3), **start(3), beam_size=3, **old)
    expected = beam_search(table_step(3), **start(3), search=BeamSearch(3), ids=ids)
    assert_same(found, expected)


def test_sample_accepts_old_settings():
    with deprecated(r"sampling=Sampling\(top_p"):
        found = sample(
            table_step(2),
            **start(2),
            num_samples=2,
            temperature=1.4,
            top_k=4,
            top_p=0.9,
            seed=3,
            compaction=False,
        )
    settings = Sampling(2, 1.4, 4, 0.9, seed=3)
    expected = sample(table_step(2), **start(2), sampling=settings, drop_finished=False)
    assert_same(found, expected)


def test_translate_ids_accepts_old_settings(model):
    with deprecated(r"search=BeamSearch\(extra_length"):
        found = translate_ids(
            model, SOURCES, beam_size=2, extra_length=3, length_penalty=0.0, end_id=4
        )
    settings = BeamSearch(2, 0.0, extra_length=3)
    expected = translate_ids(model, SOURCES, settings, SpecialIds(end=4))
    assert_same(found, expected)


def test_sample_ids_accepts_old_settings(model):
    with deprecated(r"sampling=Sampling\(num_samples"):
        found = sample_ids(
            model, SOURCES, num_samples=3, extra_length=2, temperature=1.3, seed=5
        )
    settings = Sampling(3, 1.3, seed=5, extra_length=2)
    assert_same(found, sample_ids(model, SOURCES, settings))


def test_old_settings_are_added_to_new_ones():
    with pytest.warns(DeprecationWarning):
        found = beam_search(
            table_step(3), **start(3), search=BeamSearch(3), length_penalty=1.7
        )
    expected = beam_search(table_step(3), **start(3), search=BeamSearch(3, 1.7))
    assert_same(found, expected)


def test_several_forbidden_ids_are_errors():
    with (
        pytest.warns(DeprecationWarning),
        pytest.raises(ValueError, match=r"at most one id. Received: \(1, 5\)"),
    ):
        beam_search(table_step(3), **start(3), beam_size=3, forbidden_ids=(1, 5))


def test_unknown_arguments_are_errors():
    with pytest.raises(TypeError, match="'color'"):
        beam_search(table_step(3), **start(3), color=3)


def test_new_arguments_do_not_warn(model):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "`.*` is deprecated", DeprecationWarning)
        translate_ids(model, SOURCES, BeamSearch(2, extra_length=1))
