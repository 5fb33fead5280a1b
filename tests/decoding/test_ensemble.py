"""`Ensemble` against the mean of its models' token probabilities.

`every_sequence` computes the expected log-probability of each possible sequence.
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from decoding_oracles import END, START, strip
from small_transformers import built

import keras_transformer as kt
from keras_transformer.decoding import (
    BeamSearch,
    Ensemble,
    Sampling,
    sample_ids,
    score_ids,
    translate_ids,
)

VOCABULARY = 7
SOURCES = np.array([[5, 6, 4, END], [6, END, 0, 0]], "int32")
MAX_LENGTH = 4  # of the second source: 2 ids and extra_length=2


def random_model(seed, **options):
    model = built(VOCABULARY, d_ff=20, num_heads=2, seed=seed, **options)
    rng = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        weight.assign(weight + 0.4 * rng.normal(size=weight.shape))
    return model


@pytest.fixture(scope="module")
def models():
    """Two models of different depth and width."""
    return (
        random_model(1, num_layers=1, d_model=12),
        random_model(2, num_layers=2, d_model=8),
    )


def search(model, n_best, **options):
    settings = BeamSearch(extra_length=2, **options)
    # Tracing would take longer than these few steps.
    return [x.numpy() for x in translate_ids(model, SOURCES, settings, n_best=n_best)]


def every_sequence(models):
    """Returns the log-probability of each sequence that can end for the second source.

    The probability of a token is the mean of the models' probabilities in float64.
    """
    found = {}
    for length in range(MAX_LENGTH):
        bodies = list(itertools.product((4, 5, 6), repeat=length))
        inputs = {
            "source_ids": np.repeat(SOURCES[1:, :2], len(bodies), axis=0),
            "target_ids": np.array([[START, *body] for body in bodies], "int32"),
        }
        probabilities = np.mean(
            [
                tf.nn.softmax(tf.cast(model(inputs, training=False), tf.float64))
                for model in models
            ],
            axis=0,
        )
        for body, of_body in zip(bodies, probabilities, strict=True):
            labels = [*body, END]
            picked = of_body[np.arange(len(labels)), labels]
            found[tuple(labels)] = np.sum(np.log(picked))
    return found


@pytest.mark.parametrize("alpha", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
def test_ensemble_search_finds_the_best_of_all_sequences(models, alpha):
    # The beam is wider than 4 * 3**3, all continuations of 3 tokens, so it misses none.
    sequences, scores = search(
        Ensemble(models), beam_size=120, n_best=6, length_penalty=alpha
    )
    expected = {
        ids: log_prob / ((5 + len(ids)) / 6) ** alpha
        for ids, log_prob in every_sequence(models).items()
    }
    ranked = sorted(expected, key=expected.get, reverse=True)[:6]
    assert [tuple(strip(row)) for row in sequences[1]] == ranked
    np.testing.assert_allclose(scores[1], [expected[ids] for ids in ranked], rtol=1e-4)
    # Guards the lines above: one model alone finds other sequences.
    alone = search(models[0], beam_size=120, n_best=6, length_penalty=alpha)
    assert np.any(alone[0][1] != sequences[1])


def test_ensemble_scores_and_samples_match_mean_probabilities(models):
    ensemble = Ensemble(models)
    expected = every_sequence(models)
    labels = np.array([ids for ids in expected if len(ids) == 3], "int32")
    target_ids = np.concatenate([np.full_like(labels[:, :1], START), labels], 1)[:, :-1]
    source_ids = np.repeat(SOURCES[1:, :2], len(labels), axis=0)
    scores = score_ids(ensemble, source_ids, target_ids, labels)
    wanted = [expected[tuple(row)] for row in labels.tolist()]
    np.testing.assert_allclose(scores, wanted, rtol=1e-4)
    samples, log_probs = sample_ids(
        ensemble, SOURCES[1:, :2], Sampling(40, seed=3, extra_length=2)
    )
    ended = [ids for ids in map(strip, samples[0]) if ids[-1] == END]
    assert len(ended) > 3
    for ids, log_prob in zip(map(strip, samples[0]), log_probs[0], strict=True):
        if ids[-1] == END:
            np.testing.assert_allclose(log_prob, expected[tuple(ids)], rtol=1e-4)


def test_ensemble_has_the_smallest_limit_of_learned_positions():
    learned = [
        random_model(
            3, num_layers=1, d_model=8, positions="learned", max_length=max_length
        )
        for max_length in (9, 7)
    ]
    assert Ensemble(learned).position_limit == 7


def test_ensemble_rejects_different_vocabularies(models):
    other = kt.Transformer(9, num_layers=1, d_model=8, d_ff=8, num_heads=2)
    with pytest.raises(ValueError, match=r"'vocabulary_size': \[7, 9\]"):
        Ensemble([models[0], other])
    fewer = kt.Transformer(
        7, num_layers=1, d_model=8, d_ff=8, num_heads=2, output_size=5
    )
    with pytest.raises(ValueError, match=r"'output_size': \[None, 5\]"):
        Ensemble([models[0], fewer])
    padded = kt.Transformer(7, num_layers=1, d_model=8, d_ff=8, num_heads=2, pad_id=5)
    with pytest.raises(ValueError, match=r"'pad_id': \[0, 5\]"):
        Ensemble([models[0], padded])
    with pytest.raises(ValueError, match="must not be empty"):
        Ensemble([])
