"""BLEU intervals and tests over several seeds, against sacreBLEU's bootstrap tests."""

import numpy as np
import pytest
from sacrebleu.metrics import BLEU

from keras_transformer import evaluation

WORDS = list("abcdefghijklmn")


def corpus(errors, seed):
    """Returns references, and translations with about this fraction of wrong words."""
    rng = np.random.default_rng(7)
    references = [" ".join(rng.choice(WORDS, rng.integers(5, 14))) for _ in range(150)]
    rng = np.random.default_rng(seed)
    translations = [
        " ".join(
            word if rng.random() > errors else "wrong" for word in reference.split()
        )
        for reference in references
    ]
    return references, translations


def test_bleu_interval_agrees_with_sacrebleu(monkeypatch):
    references, translations = corpus(0.2, 1)
    low, high = evaluation.bleu_interval(translations, references)
    score = BLEU().corpus_score(translations, [references], n_bootstrap=1000)
    interval = float(score.format(width=4).split("±")[1].split(")")[0])
    assert low < score.score < high
    # The two intervals are computed from different random resamples.
    assert (high - low) / 2 == pytest.approx(interval, rel=0.1)


def test_compare_seeds_scores_match_corpus_bleu():
    references, one = corpus(0.2, 1)
    _, other = corpus(0.25, 2)
    baseline, system = evaluation.compare_seeds(
        {"a": [one], "b": [one, other]}, references
    )
    scores = [evaluation.bleu(each, references).score for each in (one, other)]
    assert baseline.score == pytest.approx(scores[0])
    assert system.score == pytest.approx(np.mean(scores))
    assert baseline.p_value is None


@pytest.mark.parametrize("errors", [0.2, 0.215, 0.3])
def test_compare_seeds_agrees_with_paired_test(errors):
    references, one = corpus(0.2, 1)
    _, other = corpus(errors, 3)
    # sacreBLEU's paired bootstrap. The tolerances allow for other random resamples.
    (comparison,) = evaluation.compare_systems({"a": one, "b": other}, references)
    _, expected = comparison.systems
    _, found = evaluation.compare_seeds({"a": [one], "b": [other]}, references)
    assert found.p_value == pytest.approx(expected.p_value, rel=0.3)
    assert found.mean == pytest.approx(expected.mean, abs=0.3)
    assert found.interval == pytest.approx(expected.interval, rel=0.1)


def test_compare_seeds_p_value_is_never_zero():
    references, one = corpus(0.2, 1)
    _, worse = corpus(0.5, 2)
    systems = {"a": [one], "b": [worse]}
    found = evaluation.compare_seeds(systems, references, num_samples=99)
    assert found[1].p_value == 1 / 100


def test_compare_seeds_means_and_intervals_match_hand_calculation():
    """Of two sentences, only the first is translated correctly.

    A quarter of the resamples has only the first sentence, and BLEU 100. Another
    quarter has only the second one, and BLEU 0.
    """
    references = ["a b c d", "e f g h i j k l"]
    run = ["a b c d", "x x x x x x x x"]
    one, other = evaluation.compare_seeds(
        {"a": [run], "b": [run, references]}, references, num_samples=10_000
    )
    # The geometric mean of the precisions of 1-grams to 4-grams.
    both = 100 * (4 / 12 * 3 / 10 * 2 / 8 * 1 / 6) ** 0.25
    assert one.score == pytest.approx(both)
    # Four standard deviations of the mean of 10,000 resamples.
    assert one.mean == pytest.approx(100 / 4 + both / 2, abs=1.5)
    assert one.interval == pytest.approx((100 - 0) / 2)
    # The second run of "b" has BLEU 100 in all resamples.
    assert other.mean == pytest.approx((one.mean + 100) / 2)
    assert other.interval == pytest.approx((100 - 50) / 2)
    assert evaluation.bleu_interval(run, references) == pytest.approx((0, 100))


def test_compare_seeds_of_equal_scores_finds_no_difference():
    """The texts may differ."""
    references, one = corpus(0.2, 1)
    systems = {"a": [one + references], "b": [references + one]}
    found = evaluation.compare_seeds(systems, references * 2)
    assert found[0].score == found[1].score
    assert found[1].p_value == 1.0


def test_compare_seeds_ignores_the_order_of_seeds():
    references, _ = corpus(0.2, 1)
    seeds = [corpus(0.2, number)[1] for number in range(1, 8)]
    systems = {"a": seeds, **{str(n): seeds[n:] + seeds[:n] for n in range(1, 7)}}
    _, *found = evaluation.compare_seeds(systems, references, num_samples=50)
    assert [each.p_value for each in found] == [1.0] * 6


def test_spread_is_the_mean_and_sample_standard_deviation():
    assert str(evaluation.summarize_seeds([41.0, 42.0, 43.0])) == "42.00 ± 1.00"
    assert evaluation.summarize_seeds([41.0]) == (41.0, None)


PAIR = {"a": ["x"], "b": ["y"]}
UNPAIRED = "one translation per reference"


@pytest.mark.parametrize(
    ("function", "arguments", "options", "message"),
    [
        ("compare_seeds", ({"a": [], "b": [["x"]]}, ["x"]), {}, UNPAIRED),
        ("compare_seeds", ({"a": [[]], "b": [["x"]]}, []), {}, UNPAIRED),
        ("compare_seeds", ({"a": [["x"], ["x", "y"]]}, ["x"]), {}, "1 and 2 transl"),
        ("compare_systems", ({"a": ["x"], "b": ["x", "y"]}, ["x"]), {}, "1 and 2 tr"),
        ("compare_systems", ({"a": ["x"]}, ["x"]), {}, "two or more systems"),
        ("compare_systems", (PAIR, ["x"]), {"metrics": ["rouge"]}, "rouge"),
        ("compare_systems", (PAIR, ["x"]), {"test": "sign"}, "sign"),
        ("compare_systems", (PAIR, ["x"]), {"num_samples": 0}, "at least 1.*: 0"),
        ("compare_systems", (PAIR, ["x"]), {"seed": 0}, "`seed` must be at least 1"),
        ("bleu_interval", ([], []), {}, UNPAIRED),
        ("bleu_interval", (["x"], ["x"]), {"num_samples": 0}, "at least 1.*: 0"),
    ],
)
def test_wrong_arguments_are_rejected(function, arguments, options, message):
    with pytest.raises(ValueError, match=message):
        getattr(evaluation, function)(*arguments, **options)
