"""Sampling from table models, against the distributions that they define.

A table model looks up the logits of the next token by the two tokens before it (see
decoding_oracles.py).
"""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from decoding_oracles import (
    END,
    PAD,
    START,
    UNKNOWN,
    beam,
    log_probability,
    random_tables,
    start,
    strip,
    table_model,
    table_step,
)

from keras_transformer.decoding import Sampling, sample

NUM_SAMPLES = 4001


SETTINGS = {field.name for field in dataclasses.fields(Sampling)}


def draw(tables, num_samples, max_length, **options):
    """Samples with `options`, which are settings or other arguments of `sample`."""
    settings = {name: options.pop(name) for name in SETTINGS & set(options)}
    arguments = start(tables, num_samples, max_length)
    found = sample(*arguments, sampling=Sampling(num_samples, **settings), **options)
    return tuple(map(np.array, found))


def first_tokens(table, **options):
    """Returns the relative frequency of each id as the first token of a sample."""
    sequences, _ = draw(table[None], NUM_SAMPLES, 1, seed=5, **options)
    counts = np.bincount(sequences[0, :, 0], minlength=table.shape[-1])
    return counts / NUM_SAMPLES


def softmax_of_allowed(logits, temperature=1.0):
    logits = logits.astype("float64") / temperature
    logits[[PAD, UNKNOWN, START]] = -np.inf
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def assert_frequencies(found, expected):
    # Five standard deviations of a binomial proportion.
    bound = 5 * np.sqrt(expected * (1 - expected) / NUM_SAMPLES)
    assert np.all(np.abs(found - expected) <= bound), (found, expected)


@pytest.mark.parametrize(
    "options",
    [{"temperature": each} for each in (1e-30, 0.5, 1.0, 2.0, 1e30)] + [{"top_k": 3}],
)
def test_sample_frequencies_follow_the_softmax(options):
    table = random_tables(seed=1, batch=1, vocabulary=9)[0]
    expected = softmax_of_allowed(table[START, START], options.get("temperature", 1.0))
    expected[np.argsort(expected)[: -options.get("top_k", 9)]] = 0
    expected /= expected.sum()
    assert_frequencies(first_tokens(table, **options), expected)


def test_sample_frequencies_of_second_tokens_follow_the_softmax():
    # Each step draws its own random number. If all steps shared one, second tokens
    # would depend on first ones.
    table = random_tables(seed=2, batch=1, spread=0.5)[0]
    table[START, START, END] = -np.inf
    sequences, _ = draw(table[None], NUM_SAMPLES, 2, seed=6)
    for first in (4, 5, 6):
        seconds = sequences[0, sequences[0, :, 0] == first, 1]
        expected = softmax_of_allowed(table[START, first])
        found = np.bincount(seconds, minlength=7) / len(seconds)
        bound = 5 * np.sqrt(expected * (1 - expected) / len(seconds))
        assert np.all(np.abs(found - expected) <= bound)


# The nucleus of the probabilities below is {0.5, 0.3} for a `top_p` of 0.75 and has one
# more token for 0.85. A tiny `top_p` keeps only the most probable token.
@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.75, 2), (0.85, 3), (1e-6, 1), (0.45, 1), (1.0, 4)]
)
def test_top_p_keeps_exactly_the_nucleus(top_p, kept):
    probabilities = np.array([0.15, 0.5, 0.05, 0.3])
    table = np.full((8, 8, 8), -np.inf, "float32")
    table[START, START, 4:] = np.log(probabilities)
    expected = np.zeros(8)
    best = 4 + np.argsort(-probabilities)[:kept]
    expected[best] = probabilities[best - 4] / probabilities[best - 4].sum()
    found = first_tokens(table, top_p=top_p)
    assert set(np.flatnonzero(found)) == set(best)
    assert_frequencies(found, expected)


def test_top_p_applies_after_top_k():
    # `top_k=2` leaves the probabilities 0.625 and 0.375, so `top_p=0.6`
    # keeps one token. Without `top_k`, it keeps two tokens.
    table = np.full((8, 8, 8), -np.inf, "float32")
    table[START, START, 4:] = np.log([0.15, 0.5, 0.05, 0.3])
    assert first_tokens(table, top_k=2, top_p=0.6)[5] == 1
    assert first_tokens(table, top_p=0.6)[5] < 1


def test_top_k_of_one_matches_greedy_search():
    tables = random_tables(seed=4, batch=13)
    sequences, _ = draw(tables, 2, 12, top_k=1, seed=1)
    for table, rows in zip(tables, sequences, strict=True):
        ((_, expected),) = beam(table_model(table), 1, 12, "gnmt", 0.0, (4, 5, 6))
        assert [strip(row) for row in rows] == [expected, expected]


def test_same_seed_gives_same_samples():
    tables = random_tables(seed=5, batch=3)
    first = draw(tables, 7, 9, seed=11)[0]
    np.testing.assert_array_equal(first, draw(tables, 7, 9, seed=11)[0])
    assert np.any(first != draw(tables, 7, 9, seed=12)[0])


def test_seed_generator_gives_other_samples_at_each_call():
    tables = random_tables(seed=5, batch=3)
    arguments, settings = start(tables, 7, 9), Sampling(7, seed=1)
    generator = keras.random.SeedGenerator(11)
    first, second = (
        np.array(sample(*arguments, settings, seed=generator)[0]) for _ in range(2)
    )
    assert np.any(first != second)


def test_drop_finished_does_not_change_samples():
    tables = random_tables(seed=6, batch=19)
    limits = np.arange(19, dtype="int32") % 8
    with_it = draw(tables, 2, limits, seed=3, drop_finished=True)
    without = draw(tables, 2, limits, seed=3, drop_finished=False)
    np.testing.assert_array_equal(with_it[0], without[0])
    np.testing.assert_array_equal(with_it[1], without[1])


def test_forced_first_token_has_no_log_probability():
    tables = random_tables(seed=3, batch=2)
    first = np.array([6, 4], "int32")
    certain = tables.copy()
    certain[:, START, START] = -1e9
    certain[np.arange(2), START, START, first] = 0
    sequences, scores = draw(tables, 7, 5, seed=4, first_ids=first)
    assert np.all(sequences[:, :, 0] == first[:, None])
    for table, rows, row_scores in zip(certain, sequences, scores, strict=True):
        for sequence, score in zip(rows.tolist(), row_scores, strict=True):
            expected = log_probability(table, strip(sequence))
            np.testing.assert_allclose(score, expected, rtol=1e-5)


def test_forbidden_ids_are_never_drawn():
    tables = random_tables(seed=8, batch=3, vocabulary=10)
    tables[..., [PAD, UNKNOWN, START, 8, 9]] += 8
    for options in ({}, {"top_k": 6}, {"top_p": 0.99}):
        sequences, _ = draw(tables, 50, 5, seed=4, vocabulary_size=8, **options)
        for row in sequences.reshape(-1, 5):
            assert set(strip(row)) <= {END, 4, 5, 6, 7}


def test_random_number_of_zero_draws_an_allowed_id(monkeypatch):
    zeros = lambda shape, **_: keras.ops.zeros(shape)  # noqa: E731
    monkeypatch.setattr(keras.random, "uniform", zeros)
    table = random_tables(seed=8, batch=1)[0]
    # The first id that may be drawn, after the three excluded ones.
    assert first_tokens(table)[END] == 1


def test_compiled_sample_accepts_any_batch_size():
    @tf.function(input_signature=[tf.TensorSpec([None, 7, 7, 7], tf.float32)])
    def compiled(tables):
        batch = tf.shape(tables)[0]
        cache = {"before": tf.fill([batch * 2], START)}
        settings = Sampling(2, top_p=0.9, seed=3)
        return sample(table_step(2), cache, {"tables": tables}, batch, 9, settings)

    for batch in (1, 5):
        tables = random_tables(seed=batch, batch=batch)
        np.testing.assert_array_equal(
            compiled(tables)[0], draw(tables, 2, 9, top_p=0.9, seed=3)[0]
        )
