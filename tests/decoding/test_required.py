"""Required phrases in beam search over table models, against exhaustive search."""

import numpy as np
import pytest
import tensorflow as tf
from decoding_oracles import (
    END,
    PREFIXES,
    SEQUENCES,
    all_finished,
    assert_n_best,
    is_allowed,
    log_probability,
    padded,
    penalty,
    random_tables,
    start,
    strip,
)

from keras_transformer.decoding import BeamSearch, beam_search
from keras_transformer.decoding.required import choose, required_row

TOKENS = (4, 5, 6)
# All continuations of all prefixes of 3 tokens.
WIDE = 4 * 3**3
# For each of three sentences, its phrases, each a list of alternatives.
PHRASES = {
    "one token": [[[[4]]], [[[6]]], []],
    "several phrases": [[[[4]], [[5, 6]]], [[[6]], [[6, 5]], [[4]]], [[[5, 5]]]],
    "overlapping": [[[[4, 5]], [[5, 6]]], [[[5, 5]], [[5, 6]]], [[[4, 4, 5]]]],
    "repeated": [[[[4]], [[4]]], [[[5, 4]], [[5]]], [[[6]], [[6]], [[6]]]],
    "shared beginnings": [[[[4, 5]], [[4, 4]]], [[[5]], [[5, 4]]], [[[6, 6]], [[6]]]],
    "alternatives": [
        [[[4, 4], [5, 5, 5]]],
        [[[6], [5, 4]], [[4], [5, 6]]],
        [[[5, 4, 4], [6]], [[5, 4, 4], [6]]],
    ],
    "within another": [[[[4, 5, 6], [5]]], [[[4, 4, 5], [4, 5]]], [[[6, 5, 6]]]],
}


# Tokens 5 and 6 continue the word that 4 or 5 leaves open.
WORD_EDGES = np.array([[0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1, 0]], bool)
WHOLE_WORDS = [
    *PHRASES.values(),
    [[[[4]], [[4, 5]]], [[[5, 5]], [[5]], [[6]]], [[[4, 5], [4]]]],
    [[[[4]], [[4]]], [[[5]], [[5]]], [[[4, 5], [5, 6]], [[4, 5], [5, 6]]]],
]


def search(tables, beam_size, max_length, phrases, prefixes=None, banned=None, **more):
    decoder, cache, context, *sizes = start(
        tables, beam_size, max_length, prefixes, banned
    )
    required = padded([[*required_row(each), 0] for each in phrases])
    sequences, scores = beam_search(
        *(decoder, cache, context, *sizes),
        search=BeamSearch(beam_size),
        required_ids=required,
        **more,
    )
    return np.array(sequences), np.array(scores)


def count(ids, alternatives, edges=None):
    """Counts the occurrences of alternatives that do not overlap, from the left."""
    number = begin = end = 0
    while end < len(ids):
        end += 1
        goes_on = edges is not None and edges[1][ids[end - 1]] and end < len(ids)
        if goes_on and edges[0][ids[end]]:
            continue
        if any(ids[max(begin, end - len(each)) : end] == each for each in alternatives):
            number, begin = number + 1, end
    return number


def is_met(ids, phrases, edges=None):
    return all(count(ids, each, edges) >= phrases.count(each) for each in phrases)


@pytest.mark.parametrize("kind", PHRASES)
@pytest.mark.parametrize("drop_finished", [True, False])
def test_wide_beam_matches_exhaustive_search(kind, drop_finished):
    tables, phrases = random_tables(seed=3, batch=3), PHRASES[kind]
    options = {"n_best": 4, "drop_finished": drop_finished}
    found = search(tables, WIDE, 4, phrases, **options)
    changed = 0
    for i, table in enumerate(tables):
        ranked = all_finished(table, 4, "gnmt", 0.6, TOKENS)
        expected = [pair for pair in ranked if is_met(pair[1], phrases[i])]
        assert_n_best(found[0][i], found[1][i], expected[:4])
        changed += expected[:4] != ranked[:4]
    assert changed >= 1


@pytest.mark.parametrize("phrases", WHOLE_WORDS)
def test_phrases_end_with_whole_words(phrases):
    tables = random_tables(seed=3, batch=3)
    found = search(tables, WIDE, 4, phrases, n_best=4, word_edges=WORD_EDGES)
    narrow = search(tables, 2, 12, phrases, word_edges=WORD_EDGES)[0]
    for i, table in enumerate(tables):
        ranked = all_finished(table, 4, "gnmt", 0.6, TOKENS)
        expected = [
            pair for pair in ranked if is_met(pair[1][:-1], phrases[i], WORD_EDGES)
        ]
        if expected:
            assert_n_best(found[0][i], found[1][i], expected[:4])
        # It is certain only for phrases that begin a word.
        if not any(each[0] in (5, 6) for one in phrases[i] for each in one):
            ids = [one for one in strip(narrow[i, 0]) if one != END]
            assert is_met(ids, phrases[i], WORD_EDGES)


def test_phrases_with_prefixes_and_forbidden_sequences():
    tables = random_tables(seed=5, batch=3)
    phrases = [[[[4, 4]]], [[[4, 6], [6, 5]]], [[[5]]]]
    found = search(tables, WIDE, 4, phrases, PREFIXES, SEQUENCES, n_best=3)
    for i, table in enumerate(tables):
        expected = [
            pair
            for pair in all_finished(table, 4, "gnmt", 0.6, TOKENS)
            if is_met(pair[1], phrases[i])
            and is_allowed(pair[1], PREFIXES[i], SEQUENCES)
        ]
        assert expected
        assert_n_best(found[0][i], found[1][i], expected[:3])


@pytest.mark.parametrize("beam_size", [1, 2, 4])
def test_narrow_beam_meets_all_phrases(beam_size):
    """All phrases are met that fit, from the likeliest to the rarest ids."""
    tables = random_tables(seed=7, batch=40, vocabulary=12, spread=3)
    generator = np.random.default_rng(1)
    phrases = [
        [
            [generator.integers(4, 12, generator.integers(1, 4)).tolist()]
            for _ in range(generator.integers(0, 4))
        ]
        for _ in tables
    ]
    sequences, scores = search(tables, beam_size, 14, phrases)
    for row, score, table, each in zip(sequences, scores, tables, phrases, strict=True):
        ids = strip(row[0])
        assert is_met(ids, each)
        expected = log_probability(table, ids) / penalty("gnmt", 0.6, len(ids))
        np.testing.assert_allclose(score[0], expected, rtol=1e-4)


def test_phrases_longer_than_the_limit_are_met_in_part():
    tables = random_tables(seed=9, batch=2)
    phrases = [[[[4, 5, 6, 6, 5]]], [[[6]], [[4, 4]], [[5, 5]]]]
    sequences, scores = search(tables, 4, 3, phrases)
    assert np.all(np.isfinite(scores))
    assert strip(sequences[0, 0]) == [4, 5, 6]
    ids = strip(sequences[1, 0])
    assert len(ids) == 3 and sum(count(ids, each) for each in phrases[1]) == 2


def test_sentences_without_phrases_are_unchanged():
    tables = random_tables(seed=11, batch=4)
    plain = beam_search(*start(tables, 3, 9), search=BeamSearch(3), n_best=3)
    found = search(tables, 3, 9, [[], [[[5, 5]]], [], []], n_best=3)
    for i in (0, 2, 3):
        np.testing.assert_array_equal(found[0][i], plain[0][i])
        np.testing.assert_allclose(found[1][i], plain[1][i], rtol=1e-5)
    assert is_met(strip(found[0][1, 0]), [[[5, 5]]])


def test_compiled_search_matches_eager():
    tables, phrases = random_tables(seed=13, batch=3), PHRASES["several phrases"]
    required = padded([[*required_row(each), 0] for each in phrases])

    def run(tables, required):
        return beam_search(
            *start(tables, 3, 9),
            search=BeamSearch(3),
            required_ids=required,
        )

    signature = [tf.TensorSpec(tables.shape), tf.TensorSpec([None, None], tf.int32)]
    compiled = tf.function(run, signature)
    expected = search(tables, 3, 9, phrases)
    found = compiled(tf.constant(tables), tf.constant(required))
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_beam_takes_the_best_of_each_bank_in_turn(seed):
    random = np.random.default_rng(seed)
    scores = random.permutation(12).astype("float32")
    banks = random.integers(0, 4, 12).astype("int32")
    turns = []
    for bank in set(banks.tolist()):
        places = sorted(np.flatnonzero(banks == bank), key=lambda i: -scores[i])
        turns += [(turn, -bank, place) for turn, place in enumerate(places)]
    expected = [place for *_, place in sorted(turns)]
    found = choose(tf.constant(scores), tf.constant(banks), 12)
    np.testing.assert_array_equal(found, expected)
