"""Choice among the translations of a text: minimum Bayes risk, and reverse models."""

from collections import Counter

from sacrebleu.metrics import BLEU, CHRF


def minimum_bayes_risk(candidates, utility):
    """Computes the expected utility of each translation of a text.

    The best translation has the highest one: it is most similar to all candidates, each
    of which counts as the truth with the same probability (Eikema and Aziz, 2020).

    Args:
        candidates: List of str, translations of one text. Samples may be equal.
        utility: Function of two lists of str, hypotheses and references of the same
            length, that returns one number per pair, higher for better hypotheses.

    Returns:
        List of float, the mean utility of each candidate against all.

    Examples:
        >>> texts = ["Ein Hund rennt.", "Ein Hund läuft.", "Der Hund läuft."]
        >>> utility = kt.evaluation.UTILITIES["chrf"]
        >>> [round(x, 1) for x in kt.evaluation.minimum_bayes_risk(texts, utility)]
        [55.2, 72.0, 63.7]
    """
    counts = Counter(candidates)
    pairs = [(one, other) for one in counts for other in counts]
    values = utility(*map(list, zip(*pairs, strict=True))) if pairs else []
    expected = dict.fromkeys(counts, 0.0)
    for (one, other), value in zip(pairs, values, strict=True):
        expected[one] += float(value) * counts[other] / len(candidates)
    return [expected[each] for each in candidates]


def _sentence_scores(metric):
    def utility(hypotheses, references):
        return [
            metric.sentence_score(hypothesis, [reference]).score
            for hypothesis, reference in zip(hypotheses, references, strict=True)
        ]

    return utility


# Utilities: sacreBLEU's scores of sentences, from 0 to 100.
UTILITIES = {
    "chrf": _sentence_scores(CHRF()),
    "bleu": _sentence_scores(BLEU(effective_order=True)),
}


def rank_by_utility(ranked, utility):
    """Sorts the translations of each text by their expected utility, best first.

    Args:
        ranked: For each text, a list of `Translation`s.
        utility: Function for `minimum_bayes_risk`.

    Returns:
        Lists of the same form, best first, with expected utilities as scores.
        Translations with equal texts are merged; the first one stays.

    Examples:
        >>> texts = ["Ein Hund rennt.", "Ein Hund läuft.", "Der Hund läuft."]
        >>> ranked = [[kt.Translation(text, -1.0) for text in texts]]
        >>> utility = kt.evaluation.UTILITIES["chrf"]
        >>> ((best, *others),) = kt.evaluation.rank_by_utility(ranked, utility)
        >>> best.text, round(best.score, 1)
        ('Ein Hund läuft.', 72.0)
    """

    def sort(translations):
        utilities = minimum_bayes_risk([each.text for each in translations], utility)
        return _sorted(translations, utilities)

    return list(map(sort, ranked))


def rank_by_reverse_model(texts, ranked, reverse, weight=1.0):
    """Sorts the translations of each text by their scores in both directions.

    A score is the translation's own score plus the log-probability per subword of the
    text, given the translation.

    Args:
        texts: List of str.
        ranked: For each text, a list of `Translation`s.
        reverse: `Translator` of the other direction, or another object with `score`.
        weight: Factor on the second part.

    Returns:
        Lists of the same form, best first, with the new scores. Translations with equal
        texts are merged; the first one stays.

    Raises:
        ModelError: If `reverse` cannot score a text (see `Translator.score`).

    Examples:
        >>> class Reverse:  # in place of a `Translator` of the other direction
        ...     def score(self, sources, targets):
        ...         sums = {"Ein Hund.": -9.0, "Der Hund.": -2.0}
        ...         return [kt.decoding.PairScore(sums[each], 3) for each in sources]
        ...
        >>> first = kt.Translation("Ein Hund.", -0.5), kt.Translation("Der Hund.", -0.8)
        >>> found = kt.evaluation.rank_by_reverse_model(["The dog"], [first], Reverse())
        >>> [(each.text, round(each.score, 2)) for each in found[0]]
        [('Der Hund.', -1.47), ('Ein Hund.', -3.5)]
    """
    sources = [each.text for translations in ranked for each in translations]
    counts = map(len, ranked)
    targets = [text for text, n in zip(texts, counts, strict=True) for _ in range(n)]
    found = iter(reverse.score(sources, targets))
    return [
        _sorted(
            translations,
            [
                each.score + weight * pair.log_prob / pair.num_tokens
                for each, pair in zip(translations, found, strict=False)
            ],
        )
        for translations in ranked
    ]


def _sorted(translations, scores):
    first = {}
    for translation, score in zip(translations, scores, strict=True):
        first.setdefault(translation.text, translation._replace(score=score))
    return sorted(first.values(), key=lambda each: -each.score)
