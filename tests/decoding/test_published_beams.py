"""Test cases of fairseq and tensor2tensor, with the results that their tests expect.

Probabilities depend on the step and on the hypothesis's row in the beam, so results
also depend on the order of the alive hypotheses.
"""

import numpy as np
import pytest
from decoding_oracles import END, strip
from keras import ops

from keras_transformer.decoding import BeamSearch, Sampling, beam_search, sample
from keras_transformer.decoding.loop import StepDecoder

W1, W2 = 4, 5


def tables(*steps):
    """Returns log-probabilities, float32 `[batch, len(steps) + 1, rows, vocabulary]`.

    In the added last step, every hypothesis ends.

    Args:
        steps: For each step, probabilities `[batch, rows, 3]` of `END`, `W1`, and `W2`.
    """
    steps = np.array([*steps, np.broadcast_to([1.0, 0, 0], np.shape(steps[0]))])
    steps = np.moveaxis(steps, 0, 1)
    probabilities = np.zeros((*steps.shape[:3], 6), "float32")
    probabilities[..., [END, W1, W2]] = steps
    with np.errstate(divide="ignore"):
        return np.log(probabilities)


def step(ids, cache, context, index):
    log_probs = context["tables"]
    last = log_probs.shape[1] - 1
    log_probs = ops.take(log_probs, ops.minimum(index, last), axis=1)
    return ops.reshape(log_probs, (-1, log_probs.shape[-1])), cache


STEP = StepDecoder(step, returns_log_probs=True)


def search(log_probs, alpha, kind, patience=None, max_length=20, decoder=STEP):
    batch, _, beam_size, _ = log_probs.shape
    sequences, scores = beam_search(
        decoder,
        {"state": np.zeros(batch * beam_size, "float32")},
        {"tables": log_probs},
        batch_size=batch,
        max_length=max_length,
        search=BeamSearch(beam_size, alpha, kind, patience),
        n_best=beam_size,
    )
    return [[strip(row) for row in rows] for rows in np.array(sequences)], scores


FAIRSEQ = tables(
    [[[0, 0.9, 0.1], [0, 0.9, 0.1]], [[0, 0.7, 0.3], [0, 0.7, 0.3]]],
    [[[1, 0, 0], [0, 0.9, 0.1]], [[0.25, 0.35, 0.4], [0, 0.1, 0.9]]],
    [[[0, 0.1, 0.9], [0.6, 0.2, 0.2]], [[0.6, 0.4, 0], [0.01, 0, 0.99]]],
    [[[1, 0, 0], [1, 0, 0]], [[0.1, 0.5, 0.4], [1, 0, 0]]],
)
# Expected hypotheses: the tokens and the probability of each.
SHORT = [W1, END], [0.9, 1]
LONG = [W2, W1, W2, END], [0.1, 0.9, 0.9, 1]
SECOND_SHORT = [W1, W2, END], [0.7, 0.4, 0.6]
SECOND_LONG = [W1, W2, W1, END], [0.7, 0.4, 0.4, 1]


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        (1.0, [[SHORT, LONG], [SECOND_LONG, SECOND_SHORT]]),
        (0.0, [[SHORT, LONG], [SECOND_SHORT, SECOND_LONG]]),
        (0.6, [[SHORT, LONG], [SECOND_SHORT, SECOND_LONG]]),
        (5.0, [[LONG, SHORT], [SECOND_LONG, SECOND_SHORT]]),
    ],
)
def test_beam_matches_fairseq(alpha, expected):
    found, scores = search(FAIRSEQ, alpha, "power", patience=1)
    assert found == [[tokens for tokens, _ in ranked] for ranked in expected]
    np.testing.assert_allclose(
        scores,
        [
            [np.log(factors).sum() / len(factors) ** alpha for _, factors in ranked]
            for ranked in expected
        ],
        rtol=1e-5,
    )


def test_beam_matches_fairseq_at_the_maximum_length():
    """fairseq's limit, here 2, does not count the end, which one more step forces."""
    forced = FAIRSEQ.copy()
    forced[:, 2, :, W1:] = -np.inf
    found, scores = search(forced, 1.0, "power", patience=1, max_length=3)
    assert found == [[[W1, END], [W2, W2, END]], [[W1, W2, END], [W2, W2, END]]]
    factors = [[[0.9, 1], [0.1, 0.1, 0.6]], [[0.7, 0.4, 0.6], [0.3, 0.9, 0.01]]]
    expected = [[np.log(each).mean() for each in ranked] for ranked in factors]
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


@pytest.mark.parametrize(("top_p", "possible"), [(0.2, [W1]), (0.575, [W1, W2])])
def test_nucleus_matches_fairseq(top_p, possible):
    row = [0.25, 0.4, 0.35]
    log_probs = tables([[[0, 1, 0]] * 2] * 2, [[row] * 2] * 2)
    settings = Sampling(2, top_p=top_p, seed=1)
    cache, context = {"state": np.zeros(4)}, {"tables": log_probs}
    sequences, scores = sample(STEP, cache, context, 2, 5, settings)
    for ids, score in zip(np.reshape(sequences, (4, 5)), np.ravel(scores), strict=True):
        first, second, last = strip(ids)
        assert (first, last) == (W1, END) and second in possible
        np.testing.assert_allclose(score, np.log(row[second - END]), rtol=1e-5)


def t2t_tables(*steps):
    """Same as `tables`, but takes tensor2tensor's order: `W1`, `END`, `W2`."""
    return tables(*(np.array(each)[..., [1, 0, 2]] for each in steps))


TWO = (
    [[0.1, 0.1, 0.8], [0.1, 0.1, 0.8]],
    [[0.4, 0.5, 0.1], [0.2, 0.4, 0.4]],
    [[0.05, 0.9, 0.05], [0.4, 0.4, 0.2]],
)
OTHER = (TWO[0], [[0.3, 0.6, 0.1], [0.2, 0.4, 0.4]], TWO[2])
SHORTER, LONGER = [W2, END], [W2, W1, END]


def gnmt(length, alpha=3.5):
    return ((5 + length) / 6) ** alpha


@pytest.mark.parametrize(
    ("log_probs", "alpha", "max_length", "sequences", "scores"),
    [
        # A beam of one finds the greedy sequence.
        (
            t2t_tables([[[0.7, 0.3, 0]]], [[[0.4, 0.6, 0]]], [[[0.5, 0.5, 0]]]),
            *(0.0, 3, [[[W1, END]]], [[np.log(0.7 * 0.6)]]),
        ),
        # No hypothesis ends.
        (
            t2t_tables([[[0.2, 0.1, 0.7]]], [[[0.4, 0.1, 0.5]]]),
            *(0.0, 2, [[[W2, W2]]], [[np.log(0.7 * 0.5)]]),
        ),
        # A beam of two finds the two best sequences.
        (
            t2t_tables(*([each] for each in TWO)),
            *(0.0, 3, [[SHORTER, LONGER]]),
            [[np.log(0.8 * 0.5), np.log(0.8 * 0.4 * 0.9)]],
        ),
        # The penalty makes the longer one best, in the first of two sentences only.
        (
            t2t_tables(*(list(each) for each in zip(TWO, OTHER, strict=True))),
            *(3.5, 3),
            [[LONGER, SHORTER], [SHORTER, LONGER]],
            [
                [np.log(0.8 * 0.4 * 0.9) / gnmt(3), np.log(0.8 * 0.5) / gnmt(2)],
                [np.log(0.8 * 0.6) / gnmt(2), np.log(0.8 * 0.3 * 0.9) / gnmt(3)],
            ],
        ),
    ],
)
def test_beam_matches_tensor2tensor(log_probs, alpha, max_length, sequences, scores):
    found, found_scores = search(log_probs, alpha, "gnmt", max_length=max_length)
    assert found == sequences
    np.testing.assert_allclose(found_scores, scores, rtol=1e-5)
