"""Checks beam search, sampling, and constraints on the backend of KERAS_BACKEND.

test_model_on_backends.py runs this script. The first searches run over `random_tables`,
which stand in for a model: they contain the logits of each token given the two tokens
before it. The other searches run over a small `Transformer`.
"""

import itertools
import sys

import keras
import numpy as np
from decoding_oracles import (
    END,
    START,
    beam,
    random_tables,
    strip,
    table_cache,
    table_model,
    table_step,
)
from keras import ops

import keras_transformer as kt
from keras_transformer.decoding import (
    BeamSearch,
    Ensemble,
    Phrase,
    Sampling,
    beam_search,
    forbidden_transitions,
    loop,
    sample,
    score_ids,
    translate_ids,
)

# On JAX, batches are divided from this size on.
loop.MIN_DIVIDED = 2


def search(tables, limits):
    return beam_search(
        table_step(3),
        table_cache(7, 3),
        {"tables": tables},
        batch_size=7,
        max_length=limits,
        search=BeamSearch(3),
        buffer_length=11,
        n_best=2,
    )


def draw(tables):
    settings = Sampling(2, top_k=1, seed=1)
    return sample(table_step(2), table_cache(7, 2), {"tables": tables}, 7, 11, settings)


def find_best(tables):
    cache, context = table_cache(7, 1), {"tables": tables}
    return beam_search(table_step(1), cache, context, 7, 11, BeamSearch(1))[0]


def padded(ids):
    """Returns the ids padded to `[1, 8]`, so that JAX compiles only for one shape."""
    return np.pad(np.array([ids], "int32"), [[0, 0], [0, 8 - len(ids)]])


def compile_(function):
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function, autograph=False)
    return function


tables = random_tables(seed=21, batch=7)
limits = 5 + np.arange(7, dtype="int32")
sequences, scores = map(ops.convert_to_numpy, compile_(search)(tables, limits))
for i in range(7):
    # The same search in plain Python. "gnmt" with 0.6 is the default length penalty.
    # The tables contain the special ids and the ids 4, 5, and 6.
    expected = beam(table_model(tables[i]), 3, limits[i], "gnmt", 0.6, (4, 5, 6), 2)
    kept = scores[i] > -np.inf
    assert [strip(row) for row in sequences[i][kept]] == [ids for _, ids in expected]
    np.testing.assert_allclose(
        scores[i][kept], [score for score, _ in expected], rtol=1e-4
    )
# Sampling with `top_k=1` always draws the most probable token, like greedy search.
samples = ops.convert_to_numpy(compile_(draw)(tables)[0])
best = ops.convert_to_numpy(compile_(find_best)(tables))
np.testing.assert_array_equal(samples[:, 0], best[:, 0])
np.testing.assert_array_equal(samples[:, 1], best[:, 0])

# Greedy search with a KV cache must generate the tokens of a loop over the whole model.
# Backends draw different weights from one seed, so the weights come from NumPy.
model = kt.Transformer(11, num_layers=1, d_model=12, d_ff=20, num_heads=2)
model.build({"source_ids": (None, None), "target_ids": (None, None)})
generator = np.random.default_rng(5)
model.set_weights(
    [generator.normal(size=w.shape) * len(w.shape) / 3 for w in model.weights]
)
source_ids = np.array([[5, 9, 7, 4, END], [8, END, 0, 0, 0]], "int32")


def translate(source_ids):
    return translate_ids(model, source_ids, BeamSearch(1, extra_length=3))[0]


found = ops.convert_to_numpy(compile_(translate)(source_ids))[:, 0]
# Each limit is the length of the source, 5 or 2, plus `extra_length`.
for row, limit, ids in zip(source_ids, (8, 5), found, strict=True):
    history = [START]
    while len(history) <= limit and history[-1] != END:
        pair = {"source_ids": row[None], "target_ids": padded(history)}
        logits = ops.convert_to_numpy(model(pair, training=False))
        # The ids below `END` are never generated.
        history.append(END + int(np.argmax(logits[0, len(history) - 1, END:])))
    assert strip(ids) == history[1:], (ids, history)
# An ensemble of one model, twice, matches the model.
twice = Ensemble([model, model])
greedy = BeamSearch(1, extra_length=3)
again = compile_(lambda ids: translate_ids(twice, ids, greedy)[0])
assert np.array_equal(ops.convert_to_numpy(again(source_ids))[:, 0], found)

# A compiled search applies the settings against repetitions and omissions.
steering = {"no_repeat_ngram_size": 2, "repetition_penalty": 1.2, "min_length": 4}
steered = BeamSearch(2, extra_length=3, coverage_penalty=0.1, **steering)
sequences = compile_(lambda ids: translate_ids(model, ids, steered)[0])(source_ids)
for row in ops.convert_to_numpy(sequences)[:, 0]:
    ids = strip(row)
    pairs = list(itertools.pairwise(ids))
    assert END not in ids[:4] and len({*pairs}) == len(pairs)

# Translations must begin with the prefixes and avoid phrases made of tokens of `found`.
prefix_ids = np.array([[7, 5], [9, 0]], "int32")
spellings = [(number,) for number in range(11)]
phrases = [Phrase((int(found[0, 0]),)), Phrase((9, int(found[1, 0])))]
automaton = forbidden_transitions(spellings, phrases)


def constrained(source_ids, prefix_ids):
    return translate_ids(
        model,
        source_ids,
        BeamSearch(3, extra_length=3),
        prefix_ids=prefix_ids,
        automaton=automaton,
    )


required_ids = np.array([[7, 5, -3, 7, 5, -2, 9, -1, 4, -2], [6, -2] + [0] * 8])


# Words end before even tokens.
word_edges = np.ones((2, 11), bool)
word_edges[0, ::2] = word_edges[0, END] = False


def required(source_ids, required_ids):
    search, required_ids = BeamSearch(3, extra_length=3), {"required_ids": required_ids}
    required_ids["word_edges"] = word_edges
    return translate_ids(model, source_ids, search, num_results=2, **required_ids)


sequences = compile_(required)(source_ids, required_ids.astype("int32"))[0]
rows = [[strip(row) for row in each] for each in ops.convert_to_numpy(sequences)]
assert rows[0][0] != rows[0][1]
for number, phrases in enumerate(([(7, 5), (7, 5)], [(6,)])):
    for row in rows[number]:
        row = [one for one in row if one != END]
        ends = [i + 1 for i, one in enumerate(row[1:]) if not word_edges[0, one]]
        ends.append(len(row))
        tails = [tuple(row[:end][-len(phrases[0]) :]) for end in ends]
        assert tails.count(phrases[0]) >= len(phrases)
        assert number or {4, 9} & {row[end - 1] for end in ends}
sequences, scores = compile_(constrained)(source_ids, prefix_ids)
rows = [strip(row) for row in ops.convert_to_numpy(sequences)[:, 0]]
assert rows[0][:2] == [7, 5] and rows[1][:1] == [9]
assert found[0, 0] not in rows[0][2:] + rows[1][1:]
assert (9, found[1, 0]) not in zip(rows[1], rows[1][1:], strict=False)
for row, ids, score in zip(source_ids, rows, ops.convert_to_numpy(scores), strict=True):
    if ids[-1] != END:
        continue
    target_ids = padded([START, *ids[:-1]])
    log_probs = score_ids(model, row[None], target_ids, padded(ids))
    # The search divides log-probabilities by the length penalty of GNMT.
    expected = ops.convert_to_numpy(log_probs)[0]
    np.testing.assert_allclose(
        score[0], expected / ((5 + len(ids)) / 6) ** 0.6, rtol=1e-3
    )

# Decoding on JAX or PyTorch must not import TensorFlow.
if keras.backend.backend() != "tensorflow":
    assert "tensorflow" not in sys.modules
print(f"searched on {keras.backend.backend()}")
