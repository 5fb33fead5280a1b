"""Run by test_backends.py in a process of its own, on the backend KERAS_BACKEND."""

import sys

import numpy as np
from decoding_oracles import beam
from decoding_oracles import random_tables
from decoding_oracles import strip
from decoding_oracles import table_cache
from decoding_oracles import table_step
from keras import backend
from keras import ops

from keras_transformer.decoding import beam_search
from keras_transformer.decoding import sample


def search(tables, limits):
    return beam_search(
        table_step(3),
        table_cache(7, 3),
        {"tables": tables},
        batch_size=7,
        beam_size=3,
        max_length=limits,
        buffer_length=11,
        n_best=2,
    )


def draw(tables):
    return sample(
        table_step(2), table_cache(7, 2), {"tables": tables}, 7, 2, 11, top_k=1, seed=1
    )


def compile_(function):
    if backend.backend() == "jax":
        import jax

        return jax.jit(function)
    if backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function)
    return function


tables = random_tables(seed=21, batch=7)
limits = 5 + np.arange(7, dtype="int32")
sequences, scores = map(ops.convert_to_numpy, compile_(search)(tables, limits))
for i in range(7):
    expected = beam(tables[i], 3, limits[i], "gnmt", 0.6, (4, 5, 6), 2)
    kept = scores[i] > -np.inf
    assert [strip(row) for row in sequences[i][kept]] == [ids for _, ids in expected]
    np.testing.assert_allclose(
        scores[i][kept], [score for score, _ in expected], rtol=1e-4
    )
samples = ops.convert_to_numpy(compile_(draw)(tables)[0])
best = ops.convert_to_numpy(
    beam_search(table_step(1), table_cache(7, 1), {"tables": tables}, 7, 1, 11)[0]
)
np.testing.assert_array_equal(samples[:, 0], best[:, 0])
np.testing.assert_array_equal(samples[:, 1], best[:, 0])
if backend.backend() != "tensorflow":
    assert "tensorflow" not in sys.modules
print(f"searched on {backend.backend()}")
