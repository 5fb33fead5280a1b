"""Beam search over table models, against exhaustive and plain-Python searches.

A table model looks up the logits of the next token by the two tokens before it. The
module decoding_oracles.py contains these models and the expected searches.
"""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from decoding_oracles import (
    END,
    PAD,
    PREFIXES,
    SEQUENCES,
    START,
    UNKNOWN,
    all_finished,
    assert_n_best,
    beam,
    is_allowed,
    log_probability,
    penalty,
    random_tables,
    start,
    strip,
    table_model,
    table_step,
)

from keras_transformer.decoding import BeamSearch, SpecialIds, beam_search
from keras_transformer.numerics import softmax

TOKENS = (4, 5, 6)


def search(
    tables,
    beam_size,
    max_length,
    length_penalty=0.6,
    kind="gnmt",
    patience=None,
    step=None,
    prefixes=None,
    sequences=None,
    **options,
):
    sequences, scores = beam_search(
        *start(tables, beam_size, max_length, prefixes, sequences, step),
        search=BeamSearch(beam_size, length_penalty, kind, patience),
        **options,
    )
    return np.array(sequences), np.array(scores)


# Kinds and exponents of length penalties, and constraints of the three sentences.
EXHAUSTIVE = [
    *(("gnmt", alpha, None, None) for alpha in (0.0, 0.6, 2.0)),
    *(("power", alpha, None, None) for alpha in (0.4, 1.0, 1.7)),
    *(("gnmt", alpha, PREFIXES, None) for alpha in (0.0, 1.7)),
    ("gnmt", 0.6, None, SEQUENCES),
    ("gnmt", 0.6, [[4, 5], [6, 6], []], SEQUENCES),
]


def test_wide_beam_matches_exhaustive_search():
    tables = random_tables(seed=1, batch=3)
    beam_size = 4 * 3**3  # all continuations of all prefixes of 3 tokens
    all_best = set()
    for kind, alpha, prefixes, sequences in EXHAUSTIVE:
        for n_best in (1, 5):
            options = {"prefixes": prefixes, "sequences": sequences, "n_best": n_best}
            found = search(tables, beam_size, 4, alpha, kind, **options)
            for i, table in enumerate(tables):
                prefix = prefixes and prefixes[i]
                expected = [
                    pair
                    for pair in all_finished(table, 4, kind, alpha, TOKENS)
                    if is_allowed(pair[1], prefix, sequences)
                ]
                assert_n_best(found[0][i], found[1][i], expected[:n_best])
        all_best.add(tuple(map(tuple, found[0][:, 0].tolist())))
    # Guards the lines above: penalties and constraints select different sequences.
    assert len(all_best) > 3


# Settings of a search, and the number of finished hypotheses that end it: the rounded
# product of `patience` and `beam_size`, but at least `n_best`. Without a length
# penalty, `patience` must not lose the best one.
@pytest.mark.fault("F26", "beam 1 is greedy search")
@pytest.mark.parametrize(
    ("beam_size", "kind", "alpha", "n_best", "patience", "max_finished"),
    [
        *((size, "gnmt", 0.6, 1, None, None) for size in (1, 2, 3, 5)),
        *((size, "power", 1.0, min(2, size), None, None) for size in (1, 2, 3, 5)),
        (4, "power", 1.0, 1, 0.05, 1),
        (4, "power", 1.0, 1, 0.4, 2),
        (4, "power", 1.0, 1, 0.6, 2),
        (4, "power", 1.0, 1, 1, 4),
        (4, "power", 1.0, 1, 2, 8),
        (4, "power", 1.0, 3, 0.05, 3),
        (4, "power", 1.0, 4, 1, 4),
        (4, "power", 1.0, 1, float("inf"), None),
        (4, "power", 0.0, 1, 0.25, None),
        (4, "power", 0.0, 1, 1, None),
    ],
)
@pytest.mark.parametrize("drop_finished", [True, False])
def test_search_matches_plain_beam_search(
    beam_size, kind, alpha, n_best, patience, max_finished, drop_finished
):
    # The oracle runs to max_length, so this also tests that stopping early is safe.
    tables = random_tables(seed=2, batch=11, vocabulary=9)
    options = {"n_best": n_best, "drop_finished": drop_finished}
    found = search(tables, beam_size, 13, alpha, kind, patience, **options)
    for table, *rows in zip(tables, *found, strict=True):
        arguments = table_model(table), beam_size, 13, kind, alpha, range(4, 9)
        assert_n_best(*rows, beam(*arguments, n_best, max_finished))


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("drop_finished", [True, False])
@pytest.mark.parametrize("prefixes", [None, [[5, 6, 4], [], [4], [7]]])
def test_forced_first_token_is_certain(beam_size, drop_finished, prefixes):
    tables = random_tables(seed=6, batch=4, vocabulary=9)
    first = np.array([4, 8, 5, 4], "int32")
    certain = tables.copy()
    certain[:, START, START] = -1e9
    certain[np.arange(4), START, START, first] = 0
    if prefixes is not None:
        prefixes = [[one, *prefix] for one, prefix in zip(first, prefixes, strict=True)]
    options = {"prefixes": prefixes, "drop_finished": drop_finished, "first_ids": first}
    found = search(tables, beam_size, 9, 1.0, "power", **options)
    for i, (table, *rows) in enumerate(zip(certain, *found, strict=True)):
        arguments = table_model(table), beam_size, 9, "power", 1.0, range(4, 9)
        prefix = prefixes and prefixes[i]
        allowed = lambda ids, prefix=prefix: is_allowed(ids, prefix)  # noqa: E731
        assert_n_best(*rows, beam(*arguments, allowed=allowed))


@pytest.mark.parametrize("beam_size", [1, 2, 3])
@pytest.mark.parametrize("drop_finished", [True, False])
def test_constrained_search_matches_plain_beam_search(beam_size, drop_finished):
    tables = random_tables(seed=4, batch=11)
    prefixes = ([[5, 6, 4], [], [4]] * 4)[:11]
    options = {"prefixes": prefixes, "sequences": SEQUENCES}
    found = search(tables, beam_size, 9, drop_finished=drop_finished, **options)
    for table, prefix, *rows in zip(tables, prefixes, *found, strict=True):
        arguments = table_model(table), beam_size, 9, "gnmt", 0.6, TOKENS
        allowed = lambda ids, prefix=prefix: is_allowed(ids, prefix, SEQUENCES)  # noqa: E731
        assert_n_best(*rows, beam(*arguments, allowed=allowed))


def test_patience_ends_a_search_early():
    # Guards the tests above, which prove nothing about patience if all of their
    # searches find the same.
    tables = random_tables(seed=2, batch=11, vocabulary=9)
    steps, scores = [], []
    for patience in (0.25, 1, 4, None):
        rows = []
        step = counting_step(4, rows)
        found = search(tables, 4, 13, 1.0, "power", patience, step)
        steps.append(sum(rows))
        scores.append(found[1])
    assert steps == sorted(steps) and steps[0] < steps[1] < steps[3]
    assert all(np.all(more >= fewer) for fewer, more in itertools.pairwise(scores))


@pytest.mark.parametrize("patience", [pytest.param(None, marks=pytest.mark.slow), 0.5])
def test_n_best_as_tensor_matches_int(patience):
    """Searches with both types take equally many steps and find the same hypotheses."""
    counts = []
    for n_best in (1, 2, 4):
        tables, rows = random_tables(seed=6, batch=4, vocabulary=9), []
        step = counting_step(4, rows)
        found = search(tables, 4, 13, patience=patience, step=step, n_best=n_best)
        counts.append(len(rows))
        more = search(
            tables, 4, 13, patience=patience, step=step, n_best=tf.constant(n_best)
        )
        assert len(rows) == 2 * counts[-1] and more[0].shape[1] == 4
        for one, other in zip(found, more, strict=True):
            np.testing.assert_array_equal(one, other[:, :n_best])
    # Guards the lines above: `n_best` affects the number of steps.
    assert counts[0] < counts[2]


def test_further_results_follow_the_n_best():
    tables = random_tables(seed=4, batch=5)
    expected = search(tables, 4, max_length=9, n_best=2)
    sequences, scores = search(tables, 4, max_length=9, n_best=2, num_results=5)
    assert np.isfinite(scores[:, 2:]).any()
    np.testing.assert_array_equal(sequences[:, :2], expected[0])
    np.testing.assert_array_equal(scores[:, :2], expected[1])
    assert np.all(scores[:, 1:] <= scores[:, :-1])
    for table, rows, row_scores in zip(tables, sequences, scores, strict=True):
        for row, score in zip(rows, row_scores, strict=True):
            if score > -np.inf:
                ids = strip(row)
                log_prob = log_probability(table, ids)
                expected = log_prob / penalty("gnmt", 0.6, len(ids))
                np.testing.assert_allclose(score, expected, rtol=1e-4)


@pytest.mark.fault("F26", "the same tokens and scores")
@pytest.mark.parametrize("beam_size", [1, 4])
def test_beam_search_result_is_independent_of_batch(beam_size):
    tables = random_tables(seed=6, batch=7)
    together = search(tables, beam_size, max_length=15)
    for i in range(7):
        alone = search(tables[i : i + 1], beam_size, max_length=15)
        np.testing.assert_array_equal(together[0][i], alone[0][0])
        np.testing.assert_allclose(together[1][i], alone[1][0], rtol=1e-6)


def counting_step(beam_size, rows):
    """Returns a step function that appends its number of rows to a list."""
    step = table_step(beam_size)

    def counted(ids, cache, context, index):
        rows.append(int(ids.shape[0]))
        return step(ids, cache, context, index)

    return counted


def end_after(length, vocabulary=7):
    """Returns a table that strongly favors one sequence: 4, 5, 6, 4, ... and the end.

    The sequence has `length` tokens, end id included.
    """
    table = np.zeros((vocabulary,) * 3, "float32")
    ids = [START, START, *(4 + i % 3 for i in range(length - 1)), END]
    for place in range(length):
        table[tuple(ids[place : place + 3])] = 20
    return table


def test_finished_sentences_leave_the_batch():
    tables, rows = np.stack([end_after(1)] * 5 + [end_after(4)] * 3), []
    sequences, _ = search(tables, 2, 20, step=counting_step(2, rows))
    # Two rows per sentence: eight sentences in the first step, then three.
    assert rows == [16, 6, 6, 6]
    assert strip(sequences[7, 0]) == [4, 5, 6, END]


@pytest.mark.fault("F22", "never generated, however probable")
def test_forbidden_ids_are_never_generated():
    tables = random_tables(seed=9, batch=8, vocabulary=10)
    tables[..., [PAD, UNKNOWN, START]] += 9
    tables[..., 8:] += 5
    sequences, scores = search(tables, 3, 9, n_best=3, vocabulary_size=8)
    assert np.all(np.isfinite(scores[:, 0]))
    for row in sequences.reshape(-1, 9):
        assert set(strip(row)) <= {END, 4, 5, 6, 7}
    sequences, _ = search(tables, 3, 9, ids=SpecialIds(unknown=None))
    assert np.any(sequences == UNKNOWN)
    assert np.any(sequences >= 8)
    assert not np.any(sequences == START)


def test_beam_search_respects_limit_of_each_sentence():
    tables = random_tables(seed=10, batch=6)
    tables[..., END] -= 3
    limits = np.array([1, 2, 3, 5, 8, 0], "int32")
    sequences, scores = search(tables, 3, limits)
    assert sequences.shape == (6, 1, 8)
    for i, limit in enumerate(limits[:5]):
        expected = beam(table_model(tables[i]), 3, limit, "gnmt", 0.6, TOKENS)
        assert_n_best(sequences[i], scores[i], expected)
    assert np.all(sequences[5] == PAD)
    assert scores[5] == 0


@pytest.mark.fault(
    "F27", "ends at the limit with the best unfinished hypothesis, finite score"
)
@pytest.mark.parametrize("drop_finished", [True, False])
def test_unfinished_at_the_limit_has_a_finite_score(drop_finished):
    tables = random_tables(seed=11, batch=2)
    tables[0, ..., END] = -np.inf
    sequences, scores = search(tables, 3, 6, n_best=2, drop_finished=drop_finished)
    for i in range(2):
        expected = beam(table_model(tables[i]), 3, 6, "gnmt", 0.6, TOKENS, 2)
        assert_n_best(sequences[i], scores[i], expected)
    assert len(strip(sequences[0, 0])) == 6
    assert np.all(np.isfinite(scores[0]))


def test_beam_wider_than_the_vocabulary_finds_all_sequences():
    tables = random_tables(seed=12, batch=2, vocabulary=5)
    sequences, scores = search(tables, 9, 3, n_best=9)
    for i in range(2):
        expected = all_finished(tables[i], 3, "gnmt", 0.6, (4,))
        assert len(expected) == 3
        assert_n_best(sequences[i], scores[i], expected)


def test_compiled_beam_search_accepts_any_batch_size():
    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 7, 7, 7], tf.float32),
            tf.TensorSpec([None], tf.int32),
        ]
    )
    def compiled(tables, limits):
        batch = tf.shape(tables)[0]
        cache = {"before": tf.fill([batch * 3], START)}
        context, settings = {"tables": tables}, BeamSearch(3)
        return beam_search(
            table_step(3), cache, context, batch, limits, settings, n_best=2
        )

    for batch in (1, 6, 13):
        tables = random_tables(seed=batch, batch=batch)
        limits = 4 + np.arange(batch, dtype="int32")
        sequences, scores = compiled(tables, limits)
        expected = search(tables, 3, limits, n_best=2)
        np.testing.assert_array_equal(sequences, expected[0])
        np.testing.assert_allclose(scores, expected[1], rtol=1e-6)
    assert compiled.experimental_get_tracing_count() == 1


def test_beam_search_compiles_with_xla():
    tables = random_tables(seed=13, batch=4)
    compiled = tf.function(
        lambda tables: beam_search(
            *start(tables, 3, 9), search=BeamSearch(3), drop_finished=False
        ),
        jit_compile=True,
    )
    sequences, scores = compiled(tf.constant(tables))
    expected = search(tables, 3, 9)
    np.testing.assert_array_equal(sequences, expected[0])
    np.testing.assert_allclose(scores, expected[1], rtol=1e-5)


def test_bfloat16_logits_are_summed_in_float32():
    # Values that bfloat16 represents exactly, so that only sums can differ.
    tables = tf.cast(tf.cast(random_tables(14, 3), "bfloat16"), "float32").numpy()

    def low_precision(ids, cache, context, index):
        logits, cache = table_step(2)(ids, cache, context, index)
        return keras.ops.cast(logits, "bfloat16"), cache

    found, expected = (
        search(tables, 2, 9, step=each) for each in (low_precision, None)
    )
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_best": 3}, "beam_size=2, n_best=3"),
        ({"n_best": 0}, "beam_size=2, n_best=0"),
        ({"n_best": 2, "num_results": 1}, "num_results=1, n_best=2"),
        ({"ids": SpecialIds(unknown=END)}, "end=3"),
        ({"ids": SpecialIds(pad=END)}, "end=3"),
    ],
)
def test_beam_search_rejects_invalid_arguments(options, message):
    tables = random_tables(seed=1, batch=1)
    with pytest.raises(ValueError, match=message):
        search(tables, 2, max_length=3, **options)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("drop_finished", [True, False])
@pytest.mark.parametrize("softmax_min_size", [1, 1024])
def test_logits_that_are_not_finite_give_infinite_scores(
    monkeypatch, value, drop_finished, softmax_min_size
):
    monkeypatch.setattr(softmax, "SOFTMAX_MIN_SIZE", softmax_min_size)
    tables = random_tables(seed=4, batch=5)
    expected, _ = search(tables, 3, 9, drop_finished=drop_finished)
    tables[1, START, START, 5] = value  # in the first step
    tables[3, START] = value
    tables[3, START, START] = 0  # in the second
    sequences, scores = search(tables, 3, 9, drop_finished=drop_finished)
    assert np.all(scores[[1, 3]] == np.inf)
    np.testing.assert_array_equal(sequences[[0, 2, 4]], expected[[0, 2, 4]])
    assert np.all(np.isfinite(scores[[0, 2, 4]]))


def test_forced_sentences_have_patience():
    """The others, and explicit patience, are not affected."""
    tables = random_tables(seed=5, batch=20)

    def run(patience, **options):
        found = search(tables, 3, 12, 1.7, "power", patience, **options)
        return np.concatenate([found[0][:, 0], found[1]], axis=1)

    free, hurried = run(None), run(1.0)
    differs = np.any(free != hurried, axis=1)
    assert 1 < differs.sum() < 20
    is_forced = np.arange(20) % 2 == 0
    expected = np.where(is_forced[:, None], hurried, free)
    found = run(None, is_forced=keras.ops.convert_to_tensor(is_forced))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(run(2.0, is_forced=is_forced), run(2.0))
