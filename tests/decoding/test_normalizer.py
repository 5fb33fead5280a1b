"""Beam search over large vocabularies, against log-probabilities in float64.

For 1,024 ids or more, the search normalizes logits with a softmax. For fewer, or with
`drop_finished=False`, it uses a sum of exponentials.
"""

import itertools

import numpy as np
import pytest
from decoding_oracles import END, START, log_softmax, penalty, strip
from keras import ops
from layer_checks import numpy

from keras_transformer.decoding import BeamSearch, beam_search


# Sizes below that limit, at it, and far above it. `rounding` is the relative difference
# allowed between the scores of a sentence alone and in a batch. At 1,024, a processor
# without AVX-512 rounds a single row differently than the same row in a batch.
@pytest.mark.parametrize(
    ("vocabulary", "rounding"), [(1023, 1e-6), (1024, 2e-6), (2500, 0)]
)
def test_normalizer_of_large_vocabulary_gives_model_scores(vocabulary, rounding):
    """The scores do not depend on `drop_finished` or on the rest of the batch."""
    bigrams = np.random.default_rng(15).normal(size=(vocabulary, vocabulary)) * 4
    # Multiples of 1/64, so that adding an offset is exact and changes no probability.
    bigrams = (np.round(bigrams * 64) / 64).astype("float32")
    bigrams[:, END] += 12
    # The logits of a model may be far from 0, too.
    bigrams[: vocabulary // 2] += 60

    def step(ids, cache, context, index):
        offsets = ops.repeat(context["offsets"], 3)[:, None]
        return ops.take(bigrams, ids[:, 0], axis=0) + offsets, cache

    def found(offsets, **options):
        context = {"offsets": np.asarray(offsets, "float32")}
        size = len(offsets)
        result = beam_search(
            step, {}, context, size, 12, search=BeamSearch(3), n_best=3, **options
        )
        return [numpy(each) for each in result]

    offsets = np.linspace(0, 8, 5)
    sequences, scores = found(offsets)
    log_probs = log_softmax(bigrams)
    for rows, row_scores in zip(sequences, scores, strict=True):
        for sequence, score in zip(rows, row_scores, strict=True):
            ids = strip(sequence)
            total = sum(log_probs[pair] for pair in itertools.pairwise([START, *ids]))
            expected = total / penalty("gnmt", 0.6, len(ids))
            np.testing.assert_allclose(score, expected, rtol=1e-5)
    without = found(offsets, drop_finished=False)
    np.testing.assert_array_equal(without[0], sequences)
    np.testing.assert_allclose(without[1], scores, rtol=1e-5)
    for row, offset in enumerate(offsets):
        alone = found([offset])
        np.testing.assert_array_equal(alone[0][0], sequences[row])
        np.testing.assert_allclose(alone[1][0], scores[row], rtol=rounding)
