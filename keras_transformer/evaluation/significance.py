"""Significance of differences: between systems, and between systems over seeds."""

import contextlib
import math
import os
import statistics
from functools import partial
from typing import NamedTuple

import numpy as np
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from keras_transformer.evaluation.scores import (
    bleu_metric,
    check_counts,
    reference_sets,
    warn_of_references,
)

# For each test, sacreBLEU's name and default number of samples.
_TESTS = {"bootstrap": ("bs", 1_000), "randomization": ("ar", 10_000)}
_SEED = "SACREBLEU_SEED"


class SystemScore(NamedTuple):
    """A system's corpus score and its comparison with the baseline.

    Attributes:
        name: Name of the system.
        score: The score of the whole corpus.
        p_value: p-value of the difference from the baseline, or `None` for the
            baseline.
        mean: Mean of the score over the bootstrap resamples, or `None` for
            randomization.
        interval: Half the width of the 95% interval around `mean`, or `None` for
            randomization.

    Examples:
        >>> texts = [f"Satz {number}." for number in range(20)]
        >>> systems = {"same": texts, "other": ["Nein."] * 20}
        >>> (found,) = kt.evaluation.compare_systems(systems, texts, ["chrf"])
        >>> for system in found.systems:
        ...     print(system.name, f"{system.score:.1f}, p = {system.p_value or 1:.3f}")
        ...
        same 100.0, p = 1.000
        other 3.2, p = 0.001
    """

    name: str
    score: float
    p_value: float | None
    mean: float | None
    interval: float | None


class Comparison(NamedTuple):
    """The scores of all systems by one metric, as `compare_systems` returns them.

    Attributes:
        metric: sacreBLEU's name of the metric.
        signature: sacreBLEU's signature (see `CorpusScore`).
        systems: List of `SystemScore`, the baseline first.

    Examples:
        >>> systems = {"first": ["Der Hund läuft."], "second": ["Ein Hund."]}
        >>> found = kt.evaluation.compare_systems(
        ...     systems, ["Der Hund läuft."], ["bleu", "chrf"], num_samples=10
        ... )
        >>> [comparison.metric for comparison in found]
        ['BLEU', 'chrF2']
        >>> [system.name for system in found[0].systems]
        ['first', 'second']
    """

    metric: str
    signature: str
    systems: list[SystemScore]


def check_num_samples(num_samples):
    """Raises `ValueError` if a test has no resample or trial."""
    if num_samples < 1:
        raise ValueError(f"`num_samples` must be at least 1. Received: {num_samples}.")


def compare_systems(
    systems,
    references,
    metrics=("bleu",),
    test="bootstrap",
    num_samples=None,
    seed=12345,
    tokenize="13a",
    lowercase=False,
):
    """Tests whether the scores of systems differ from those of a baseline.

    The tests are the paired bootstrap (Koehn, 2004) and approximate randomization
    (Riezler and Maxwell, 2005).

    Args:
        systems: Mapping of system names to lists of str, one translation per sentence.
            There must be at least two systems. The first is the baseline.
        references: List of str, one reference per sentence. If sentences have several
            references, a list of such lists.
        metrics: Sequence of one or more of "bleu", "chrf" and "ter".
        test: "bootstrap" or "randomization".
        num_samples: Number of resamples or trials. If `None`, 1,000 for the bootstrap
            and 10,000 for randomization.
        seed: Seed of the resampling, an int of at least 1.
        tokenize: Name of the sacreBLEU tokenizer for BLEU.
        lowercase: Whether BLEU and chrF ignore case.

    Returns:
        List of `Comparison`, one per metric.

    Raises:
        ValueError: If there are fewer than two systems, if lengths differ, if a metric
            or the test is unknown, or if `num_samples` or `seed` is below 1.

    Examples:
        >>> references = ["Ein Mann fährt Fahrrad.", "Der Hund läuft."]
        >>> good, bad = ["Ein Mann fährt Rad.", "Der Hund läuft."], ["Nein.", "Ja."]
        >>> systems = {"a": good, "b": bad}
        >>> (comparison,) = kt.evaluation.compare_systems(systems, references, ["chrf"])
        >>> [f"{system.name}: {system.score:.1f}" for system in comparison.systems]
        ['a: 76.4', 'b: 3.6']
    """
    unknown = {*metrics} - {"bleu", "chrf", "ter"}
    if unknown:
        raise ValueError(
            "`metrics` must contain only bleu, chrf and ter. "
            f"Received: {', '.join(sorted(unknown))}."
        )
    if test not in _TESTS:
        raise ValueError(
            f"`test` must be one of {', '.join(_TESTS)}. Received: test={test!r}."
        )
    references = reference_sets(references)
    check_counts(systems.values(), references)
    if len(systems) < 2:
        raise ValueError("There must be two or more systems. Received: 1.")
    kind, default_samples = _TESTS[test]
    if num_samples is not None:
        check_num_samples(num_samples)
    if seed < 1:
        # For seed 0, sacreBLEU would draw a random seed in each call.
        raise ValueError(f"`seed` must be at least 1. Received: {seed}.")
    warn_of_references(systems.values(), references, metrics, tokenize)
    # The references are processed once for all systems.
    classes = {
        "bleu": partial(bleu_metric, tokenize, lowercase),
        "chrf": partial(CHRF, lowercase=lowercase),
        "ter": TER,
    }
    built = {name: classes[name](references=references) for name in metrics}
    with _set_seed(seed):
        signatures, scores = PairedTest(
            list(systems.items()),
            built,
            references=None,
            test_type=kind,
            n_samples=num_samples or default_samples,
        )()
    return [
        Comparison(
            metric,
            str(signature),
            [
                SystemScore(
                    name,
                    float(one.score),
                    _paired_p_value(one, scores[metric][0]),
                    _number(one.mean),
                    _number(one.ci),
                )
                for name, one in zip(scores["System"], scores[metric], strict=True)
            ],
        )
        for metric, signature in signatures.items()
    ]


def _paired_p_value(system, baseline):
    # sacreBLEU counts resamples with a larger difference than the observed one. Between
    # equal systems there may be none, and the difference 0 would be significant.
    is_tie = system is not baseline and system.score == baseline.score
    return 1.0 if is_tie else _number(system.p_value)


def _number(value):
    return None if value is None else float(value)


@contextlib.contextmanager
def _set_seed(seed):
    """Sets the environment variable from which sacreBLEU reads its seed."""
    before = os.environ.get(_SEED)
    os.environ[_SEED] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SEED]
        else:
            os.environ[_SEED] = before


class SeedStatistics(NamedTuple):
    """Mean and sample standard deviation of a score over seeds (`summarize_seeds`).

    Attributes:
        mean: The mean.
        deviation: The sample standard deviation, or `None` for a single seed.
    """

    mean: float
    deviation: float | None

    def __str__(self):
        if self.deviation is None:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} ± {self.deviation:.2f}"


def summarize_seeds(scores) -> SeedStatistics:
    """Returns the `SeedStatistics` of a non-empty list of scores.

    Examples:
        >>> statistics = kt.evaluation.summarize_seeds([27.1, 27.3, 27.5])
        >>> f"{statistics.mean:.1f} ± {statistics.deviation:.1f}"
        '27.3 ± 0.2'
    """
    deviation = statistics.stdev(scores) if len(scores) > 1 else None
    return SeedStatistics(statistics.mean(scores), deviation)


def bleu_interval(
    hypotheses,
    references,
    tokenize="13a",
    lowercase=False,
    num_samples=1000,
    seed=12345,
):
    """Estimates the 95% bootstrap interval of corpus BLEU (Koehn 2004).

    Args:
        hypotheses: List of str, one translation per sentence.
        references: List of str, one reference per sentence.
        tokenize: Name of a sacreBLEU tokenizer.
        lowercase: Whether to ignore case.
        num_samples: Number of resamples of the sentences.
        seed: Seed of the resampling.

    Returns:
        Tuple of the lower and the upper bound.

    Raises:
        ValueError: If the lists are empty or their lengths differ, or if `num_samples`
            is below 1.

    Examples:
        >>> texts = [f"Das ist der Satz {number}." for number in range(20)]
        >>> changed = [*texts[:15], *["Das ist er nicht."] * 5]
        >>> low, high = kt.evaluation.bleu_interval(changed, texts)
        >>> f"{low:.0f} to {high:.0f}"
        '64 to 96'
    """
    check_counts([hypotheses], [references])
    check_num_samples(num_samples)
    counts = _counts(hypotheses, references, tokenize, lowercase)
    picks = _resamples(len(references), num_samples, seed)
    return _interval(_bleu_of_resamples(counts, picks))


def compare_seeds(
    systems,
    references,
    tokenize="13a",
    lowercase=False,
    num_samples=1000,
    seed=12345,
):
    """Tests whether mean BLEU over seeds differs from that of a baseline.

    This is the paired bootstrap of Koehn (2004): all seeds of all systems are scored on
    the same resamples of the sentences. The p-value is (c + 1) / (n + 1), as in
    sacreBLEU. Here n is the number of resamples. In c of them, the absolute difference
    exceeds its mean by more than the observed absolute difference. If the scores are
    equal, the p-value is 1.

    Args:
        systems: Mapping of names to lists of runs, one run per seed. A run is a list of
            str, one translation per sentence. The first system is the baseline.
        references: List of str, one reference per sentence.
        tokenize: Name of a sacreBLEU tokenizer.
        lowercase: Whether to ignore case.
        num_samples: Number of resamples of the sentences.
        seed: Seed of the resampling.

    Returns:
        List of `SystemScore`, the baseline first.

    Raises:
        ValueError: If a system has no run, if a run or `references` is empty or their
            lengths differ, or if `num_samples` is below 1.

    Examples:
        >>> texts = [f"Das ist der Satz {number}." for number in range(20)]
        >>> good, bad = texts[:19] + ["Nein."], ["Nein."] * 20
        >>> systems = {"good": [good, texts], "bad": [bad, bad]}
        >>> for system in kt.evaluation.compare_seeds(systems, texts, num_samples=100):
        ...     print(system.name, f"{system.score:.1f}")
        ...
        good 98.1
        bad 0.0
    """
    check_num_samples(num_samples)
    for runs in systems.values():
        check_counts(runs, [references])
    picks = _resamples(len(references), num_samples, seed)
    all_sentences = np.arange(len(references))[None]
    baseline_score = baseline_samples = None
    scores = []
    for name, runs in systems.items():
        counts = [_counts(run, references, tokenize, lowercase) for run in runs]
        score = float(np.mean([_bleu_of_resamples(c, all_sentences) for c in counts]))
        samples = np.mean([_bleu_of_resamples(c, picks) for c in counts], axis=0)
        low, high = _interval(samples)
        p_value = None
        if baseline_samples is None:
            baseline_score, baseline_samples = score, samples
        else:
            p_value = _p_value(samples - baseline_samples, score - baseline_score)
        scores.append(
            SystemScore(name, score, p_value, float(samples.mean()), (high - low) / 2)
        )
    return scores


def _p_value(differences, observed):
    # Equal scores are not a significant difference, as in `compare_systems`. Rounding
    # errors may separate means that should be equal.
    if abs(observed) < 1e-9:
        return 1.0
    sizes = np.abs(differences)
    extreme = sizes - sizes.mean() > abs(observed)
    return float((np.sum(extreme) + 1) / (len(differences) + 1))


def _resamples(size, count, seed):
    """Returns indices of sentences, `[count, size]`."""
    return np.random.default_rng(seed).integers(0, size, (count, size))


def _interval(samples):
    low, high = np.percentile(samples, (2.5, 97.5))
    return float(low), float(high)


def _counts(hypotheses, references, tokenize, lowercase):
    """Returns BLEU's sufficient statistics, an int array with one row per sentence.

    The columns are the matching n-grams of each order, all n-grams of each order, and
    the lengths of hypothesis and reference.
    """
    # `effective_order` only avoids a warning: the counts are the same.
    metric = bleu_metric(tokenize, lowercase, effective_order=True)
    rows = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        score = metric.sentence_score(hypothesis, [reference])
        rows.append([*score.counts, *score.totals, score.sys_len, score.ref_len])
    return np.array(rows, "int64")


def _bleu_of_resamples(counts, picks):
    """Returns an array with the corpus BLEU of each row of `picks`."""
    # `frequencies[i, j]` is the number of times that resample i picks sentence j. The
    # matrix product sums the counts of the picked sentences.
    size, scores = len(counts), []
    frequencies = np.stack([np.bincount(row, minlength=size) for row in picks])
    for *ngrams, sys_len, ref_len in (frequencies @ counts).tolist():
        correct, total = ngrams[: len(ngrams) // 2], ngrams[len(ngrams) // 2 :]
        bleu = BLEU.compute_bleu(correct, total, sys_len, ref_len, "exp")
        scores.append(0.0 if math.isnan(bleu.score) else bleu.score)
    return np.array(scores)
