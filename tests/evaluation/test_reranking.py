"""Minimum Bayes risk and reverse models, against formulas by hand."""

import numpy as np
import pytest
import sacrebleu

from keras_transformer.decoding import PairScore, Translation
from keras_transformer.evaluation import (
    UTILITIES,
    minimum_bayes_risk,
    rank_by_reverse_model,
    rank_by_utility,
)

TEXTS = ["the cat sat on the mat", "a cat sat on a mat", "dogs bark", "a cat sat"]
TEXTS += ["the cat sat on the mat"]
SCORES = {
    "chrf": sacrebleu.sentence_chrf,
    "bleu": lambda one, other: sacrebleu.sentence_bleu(
        one, other, use_effective_order=True
    ),
}


@pytest.mark.parametrize("name", UTILITIES)
def test_expected_utility_is_the_mean_over_all_candidates(name):
    expected = [
        np.mean([SCORES[name](one, [other]).score for other in TEXTS]) for one in TEXTS
    ]
    np.testing.assert_allclose(minimum_bayes_risk(TEXTS, UTILITIES[name]), expected)
    (ranked,) = rank_by_utility(
        [[Translation(each, 0.0) for each in TEXTS]], UTILITIES[name]
    )
    order = sorted(range(4), key=lambda i: -expected[i])
    assert [each.text for each in ranked] == [TEXTS[i] for i in order]
    assert ranked[0].score == pytest.approx(max(expected))


def test_minimum_bayes_risk_accepts_any_utility():
    def utility(hypotheses, references):
        pairs = zip(hypotheses, references, strict=True)
        return np.array([-abs(len(one) - len(other)) for one, other in pairs])

    assert minimum_bayes_risk(["a", "abc", "ab"], utility) == [-1, -1, -2 / 3]
    assert minimum_bayes_risk([], utility) == []


def test_reverse_model_adds_its_mean_log_probability():
    class Reverse:
        def score(self, sources, targets):
            assert targets == ["xyz", "xyz", "u"]
            return [PairScore(-len(each) * 4.0, 4) for each in sources]

    ranked = [
        [Translation("abcd", -1.0), Translation("ab", -1.5, ("loops",))],
        [Translation("e", -2.0)],
    ]
    found = rank_by_reverse_model(["xyz", "u"], ranked, Reverse())
    assert found == [
        [Translation("ab", -3.5, ("loops",)), Translation("abcd", -5.0)],
        [Translation("e", -3.0)],
    ]
    unweighted = rank_by_reverse_model(["xyz", "u"], ranked, Reverse(), weight=0)
    assert unweighted == ranked
