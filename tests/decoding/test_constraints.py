"""Prefixes and forbidden phrases in searches over table models.

test_beam_search.py compares constrained searches with plain Python.
"""

import itertools

import numpy as np
import pytest
from decoding_oracles import (
    END,
    PREFIXES,
    SEQUENCES,
    START,
    automaton,
    contains_any,
    log_probability,
    padded,
    penalty,
    random_tables,
    start,
    strip,
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
# The tokens 5, 4 and 6 have consecutive ranks. Special ids are not sorted among them.
RANKS = np.array([0, 0, 0, 0, 2, 1, 3], "int32")
WIDE = 4 * 3**3  # all continuations of all prefixes of 3 tokens


def search(
    tables,
    beam_size,
    max_length,
    prefixes=None,
    sequences=None,
    ends=None,
    **options,
):
    limits = (
        {}
        if ends is None
        else {"prefix_ends": ends.astype("int32"), "token_ranks": RANKS}
    )
    sequences, scores = beam_search(
        *start(tables, beam_size, max_length, prefixes, sequences, **limits),
        search=BeamSearch(beam_size),
        **options,
    )
    return np.array(sequences), np.array(scores)


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


@pytest.mark.parametrize("sequences", [None, [(6, 4), (4, 4)]])
def test_prefix_may_end_inside_a_word(sequences):
    """The result is the best of those that begin with any of the allowed tokens."""
    tables = random_tables(seed=4, batch=8)
    prefixes = [[6, 5], [5], [6, 4], [], *[[6, 5]] * 4]
    # For each prefix and position, a range of ranks, and all allowed beginnings.
    ends = np.array(
        [
            *([[2, 3], [1, 4]], [[1, 3], [0, 0]], [[0, 0], [2, 3]], [[0, 0]] * 2),
            *[[[2, 3], [0, 0]]] * 4,
        ]
    )
    allowed = [[[4], [6, 5], [6, 4], [6, 6]], [[5], [4]], [[6, 4]], [[]]]
    allowed += [[[4], [6, 5]]] * 4
    options = {"sequences": sequences, "n_best": 1}
    found, scores = search(tables, WIDE, 4, prefixes, ends=ends, **options)
    for row, (prefix, forced) in enumerate(zip(prefixes, allowed, strict=True)):
        if sequences:  # the prefix is always allowed, other tokens unless forbidden
            forced = [
                each
                for each in forced
                if each == prefix or not contains_any(each, sequences)
            ]
        same = np.repeat(tables[row : row + 1], len(forced), axis=0)
        others, other_scores = search(same, WIDE, 4, forced, **options)
        best = np.argmax(other_scores[:, 0])
        np.testing.assert_allclose(scores[row, 0], other_scores[best, 0], rtol=1e-5)
        assert strip(found[row, 0]) == strip(others[best, 0])


def test_forbidden_word_at_the_end_of_a_prefix_is_not_continued():
    """Token 4 and the end separate words. After the prefix, it is the likeliest."""
    tables = np.full_like(random_tables(seed=3, batch=1), -9.0)
    tables[..., 4] = 0.0
    spellings = [(number,) for number in range(7)]
    spellings[END] = (4,)
    table = forbidden_transitions(spellings, [Phrase((5,), True, True)], [(4,)])
    sequences, _ = search(tables, 3, 4, [[4, 5]], table, n_best=1)
    assert strip(sequences[0, 0])[:3] == [4, 5, 4]


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


def draw(tables, num_samples, max_length, prefixes, sequences, **options):
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
