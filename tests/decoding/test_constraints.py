"""Prefixes and forbidden phrases, against searches in plain Python.

The tests use table models, which look up the logits of the next token by the two tokens
before it (see decoding_oracles.py).
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from decoding_oracles import (
    END,
    START,
    all_finished,
    assert_n_best,
    beam,
    log_probability,
    penalty,
    random_tables,
    strip,
    table_cache,
    table_model,
    table_step,
)

from keras_transformer.decoding import (
    BeamSearch,
    Phrase,
    Sampling,
    beam_search,
    forbidden_transitions,
    sample,
)
from keras_transformer.decoding.constraints import ConstrainedDecoder

TOKENS = (4, 5, 6)
WIDE = 4 * 3**3  # all continuations of all prefixes of 3 tokens
PREFIXES = [[5, 4], [], [6]]
# Sequences of tokens that are forbidden.
SEQUENCES = [(4, 5), (6, 6, 4), (5, 4, 6), (5, 5)]


def padded(prefixes):
    rows = np.zeros((len(prefixes), max(map(len, prefixes))), "int32")
    for row, prefix in zip(rows, prefixes, strict=True):
        row[: len(prefix)] = prefix
    return rows


def automaton(sequences, vocabulary=7):
    """Returns the transition table that forbids sequences of ids."""
    spellings = [(number,) for number in range(vocabulary)]
    return forbidden_transitions(spellings, [Phrase(each) for each in sequences])


def start(tables, rows, max_length, prefixes=None, sequences=None):
    """Returns the first five arguments of a search with a constrained table model.

    Args:
        tables: Logits (see `random_tables`).
        rows: Number of hypotheses or samples per sentence.
        max_length: Scalar or `[batch]`.
        prefixes: For each sentence, the list of ids that it must begin with.
        sequences: List of forbidden sequences of ids, or their transition table.
    """
    if isinstance(sequences, list):
        sequences = automaton(sequences, tables.shape[-1])
    prefix_ids = None if prefixes is None else padded(prefixes)
    decoder = ConstrainedDecoder(
        table_step(rows), rows, max_length, prefix_ids=prefix_ids, automaton=sequences
    )
    cache = table_cache(len(tables), rows)
    cache, context = decoder.wrap(cache, {"tables": tables}, len(tables))
    return decoder, cache, context, len(tables), max_length


def search(
    tables,
    beam_size,
    max_length,
    prefixes=None,
    sequences=None,
    length_penalty=0.6,
    **options,
):
    sequences, scores = beam_search(
        *start(tables, beam_size, max_length, prefixes, sequences),
        search=BeamSearch(beam_size, length_penalty),
        **options,
    )
    return np.array(sequences), np.array(scores)


def contains_any(ids, sequences):
    """Returns whether `ids` contain one of the sequences."""
    return any(
        tuple(ids[first : first + len(sequence)]) == tuple(sequence)
        for sequence in sequences
        for first in range(len(ids))
    )


@pytest.mark.parametrize("alpha", [0.0, 1.7])
def test_prefix_search_finds_the_best_of_all_sequences(alpha):
    tables = random_tables(seed=1, batch=3)
    found = search(tables, WIDE, 4, PREFIXES, n_best=5, length_penalty=alpha)
    free = search(tables, WIDE, 4, n_best=5, length_penalty=alpha)
    for i, (table, prefix) in enumerate(zip(tables, PREFIXES, strict=True)):
        expected = [
            pair
            for pair in all_finished(table, 4, "gnmt", alpha, TOKENS)
            if pair[1][: len(prefix)] == prefix
        ]
        assert_n_best(found[0][i], found[1][i], expected[:5])
    # Guards the lines above: without prefixes, other sequences are found.
    assert np.any(found[0][0] != free[0][0]) and np.any(found[0][2] != free[0][2])
    np.testing.assert_array_equal(found[0][1], free[0][1])


def test_search_finds_the_best_of_all_allowed_sequences():
    tables = random_tables(seed=2, batch=5)
    found = search(tables, WIDE, 4, sequences=SEQUENCES, n_best=7)
    changed = 0
    for i, table in enumerate(tables):
        everything = all_finished(table, 4, "gnmt", 0.6, TOKENS)
        expected = [pair for pair in everything if not contains_any(pair[1], SEQUENCES)]
        assert_n_best(found[0][i], found[1][i], expected[:7])
        changed += expected[:7] != everything[:7]
    assert changed > 2


def test_logits_without_a_token_are_forbidden():
    tables = random_tables(seed=2, batch=2)
    expected = search(tables, WIDE, 4, sequences=SEQUENCES, n_best=7)
    # Columns of the transition table beyond the logits have no effect.
    wider = automaton(SEQUENCES, tables.shape[-1] + 2)
    for one, other in zip(
        search(tables, WIDE, 4, sequences=wider, n_best=7), expected, strict=True
    ):
        np.testing.assert_array_equal(one, other)
    # The additional logits are the most probable, but belong to no token.
    more = np.pad(tables, [[0, 0], [0, 2], [0, 2], [0, 2]], constant_values=9.0)
    narrower = automaton(SEQUENCES, tables.shape[-1])
    found, scores = search(more, 8, 4, sequences=narrower, n_best=3)
    assert np.isfinite(scores).all() and found.max() < tables.shape[-1]


def test_decoder_of_log_probs_is_not_normalized_again():
    tables = random_tables(seed=2, batch=3)
    expected = search(tables, 4, 4, PREFIXES, SEQUENCES, n_best=3)
    inner, cache, context, *sizes = start(tables, 4, 4, sequences=SEQUENCES)
    outer = ConstrainedDecoder(inner, 4, 4, prefix_ids=padded(PREFIXES))
    cache, context = outer.wrap(cache, context, len(tables))
    found = beam_search(outer, cache, context, *sizes, search=BeamSearch(4), n_best=3)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)


def test_prefixes_override_forbidden_sequences():
    # A prefix is always generated. If it contains a forbidden sequence, only the tokens
    # after it are constrained.
    tables = random_tables(seed=3, batch=3)
    prefixes = [[4, 5], [6, 6], []]
    sequences, scores = search(tables, WIDE, 4, prefixes, SEQUENCES, n_best=3)
    for i, (table, prefix) in enumerate(zip(tables, prefixes, strict=True)):
        expected = [
            (score, ids)
            for score, ids in all_finished(table, 4, "gnmt", 0.6, TOKENS)
            if ids[: len(prefix)] == prefix
            and (
                not contains_any(ids[len(prefix) :], SEQUENCES)
                if contains_any(prefix, SEQUENCES)
                else not contains_any(ids, SEQUENCES)
            )
        ]
        assert_n_best(sequences[i], scores[i], expected[:3])


def test_forbidden_word_at_the_end_of_a_prefix_is_not_continued():
    """Token 4 and the end separate words. After the prefix, it is the likeliest."""
    tables = np.full_like(random_tables(seed=3, batch=1), -9.0)
    tables[..., 4] = 0.0
    spellings = [(number,) for number in range(7)]
    spellings[END] = (4,)
    table = forbidden_transitions(spellings, [Phrase((5,), True, True)], [(4,)])
    sequences, _ = search(tables, 3, 4, [[4, 5]], table, n_best=1)
    assert strip(sequences[0, 0])[:3] == [4, 5, 4]


@pytest.mark.parametrize("beam_size", [1, 2, 3])
@pytest.mark.parametrize("drop_finished", [True, False])
def test_constrained_narrow_beam_matches_plain_beam_search(beam_size, drop_finished):
    tables = random_tables(seed=4, batch=11)
    prefixes = [[5, 6, 4], [], [4]] * 4
    found = search(
        tables, beam_size, 9, prefixes[:11], SEQUENCES, drop_finished=drop_finished
    )
    for i, (table, prefix) in enumerate(zip(tables, prefixes[:11], strict=True)):

        def allowed(ids, prefix=prefix):
            starts_with_prefix = ids[: len(prefix)] == prefix[: len(ids)]
            return starts_with_prefix and not contains_any(ids, SEQUENCES)

        arguments = table_model(table), beam_size, 9, "gnmt", 0.6, TOKENS
        assert_n_best(found[0][i], found[1][i], beam(*arguments, allowed=allowed))


def test_prefix_is_cut_at_the_limit():
    tables = random_tables(seed=5, batch=1)
    sequences, scores = search(tables, 3, 2, [[4, 5, 6]])
    assert strip(sequences[0, 0]) == [4, 5]
    expected = log_probability(tables[0], [4, 5]) / penalty("gnmt", 0.6, 2)
    np.testing.assert_allclose(scores[0, 0], expected, rtol=1e-4)


@pytest.mark.parametrize("silent", [None, 5])
@pytest.mark.parametrize("drop_finished", [True, False])
def test_word_at_the_limit_counts_as_complete(drop_finished, silent):
    """Token 4 and the end separate words. The words 5 and 6 6 are forbidden.

    A silent token spells nothing. It is never the last one.
    """
    tables = random_tables(seed=9, batch=9)
    tables[..., END] = -np.inf
    boundaries = [(4,)]
    spellings = [(number,) for number in range(7)]
    spellings[END] = (4,)
    if silent is not None:
        spellings[silent] = ()
    words = [Phrase((5,), True, True), Phrase((6, 6), True, True)]
    table = forbidden_transitions(spellings, words, boundaries)
    limits = np.arange(9, dtype="int32") % 4 + 2

    def allowed(ids, limit):
        if len(ids) == limit and ids[-1] == silent:
            return False
        ids = [number for number in ids if number != silent] or [4]
        text = "".join(map(str, ids)).strip("4")
        whole = text.split("4")
        # Words are found only after a separator. None precedes the first word.
        if ids[0] != 4:
            whole = whole[1:]
        return not {"5", "66"}.intersection(whole)

    sequences, _ = search(
        tables, 120, limits, sequences=table, n_best=1, drop_finished=drop_finished
    )
    changed = 0
    for i, limit in enumerate(limits):
        bodies = itertools.product(TOKENS, repeat=int(limit))
        ranked = sorted(bodies, key=lambda ids, i=i: -log_probability(tables[i], ids))
        expected = next(ids for ids in ranked if allowed(ids, limit))
        assert tuple(strip(sequences[i, 0])) == expected
        changed += expected != ranked[0]
    assert changed > 1


def draw(tables, num_samples, max_length, prefixes=None, sequences=None, **options):
    arguments = start(tables, num_samples, max_length, prefixes, sequences)
    return map(np.array, sample(*arguments, Sampling(num_samples, **options)))


@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.9}])
def test_samples_satisfy_all_constraints(options):
    tables = random_tables(seed=6, batch=3)
    sequences, scores = draw(tables, 60, 8, PREFIXES, SEQUENCES, seed=3, **options)
    for table, prefix, rows, row_scores in zip(
        tables, PREFIXES, sequences, scores, strict=True
    ):
        for row, score in zip(rows, row_scores, strict=True):
            ids = strip(row)
            assert ids[: len(prefix)] == prefix
            assert not contains_any(ids, SEQUENCES)
            np.testing.assert_allclose(score, log_probability(table, ids), rtol=1e-4)
    assert len({tuple(row) for row in sequences[1]}) > 4


def test_samples_follow_the_model_among_allowed_tokens():
    tables = random_tables(seed=7, batch=1)
    sequences, _ = draw(tables, 4001, 2, [[4]], [(4, 5)], seed=5, temperature=1.4)
    weights = np.exp(tables[0, START, 4].astype("float64") / 1.4)
    # Special ids are never generated, and 5 must not follow the prefix 4.
    weights[[0, 1, START, 5]] = 0
    expected = weights / weights.sum()
    found = np.bincount(sequences[0, :, 1], minlength=7) / 4001
    # Five standard deviations of a binomial proportion.
    bound = 5 * np.sqrt(expected * (1 - expected) / 4001)
    assert np.all(np.abs(found - expected) <= bound)


def test_compiled_constrained_search_accepts_any_batch_size():
    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 7, 7, 7], tf.float32),
            tf.TensorSpec([None, None], tf.int32),
        ]
    )
    def compiled(tables, prefix_ids):
        batch = tf.shape(tables)[0]
        decoder = ConstrainedDecoder(
            table_step(3), 3, 9, prefix_ids=prefix_ids, automaton=automaton(SEQUENCES)
        )
        cache = {"before": tf.fill([batch * 3], START)}
        cache, context = decoder.wrap(cache, {"tables": tables}, batch)
        return beam_search(decoder, cache, context, batch, 9, BeamSearch(3))

    for batch, prefixes in ((3, PREFIXES), (2, [[], []])):
        tables = random_tables(seed=batch, batch=batch)
        expected = search(tables, 3, 9, prefixes, SEQUENCES)
        found = compiled(tables, padded(prefixes))
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-6)
    assert compiled.experimental_get_tracing_count() == 1
