"""BLEU over training seeds: spread, bootstrap intervals, and a significance test."""

import math
import statistics
from typing import NamedTuple

import numpy as np
from sacrebleu.metrics import BLEU

from keras_transformer.evaluation.scores import bleu_metric, check_counts
from keras_transformer.evaluation.significance import SystemScore, check_num_samples

# BLEU counts n-grams of 1 to 4 words.
_ORDERS = 4


class Spread(NamedTuple):
    """Mean and sample standard deviation of a score over seeds."""

    mean: float
    deviation: float | None  # None for a single seed

    def __str__(self):
        if self.deviation is None:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} ± {self.deviation:.2f}"


def spread(scores) -> Spread:
    """Computes the `Spread` of a non-empty list of scores."""
    deviation = statistics.stdev(scores) if len(scores) > 1 else None
    return Spread(statistics.mean(scores), deviation)


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
    """Tests whether a system's mean BLEU over seeds differs from the baseline's.

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
    size = len(counts)
    frequencies = np.stack([np.bincount(row, minlength=size) for row in picks])
    return np.array([_bleu(sums) for sums in frequencies @ counts])


def _bleu(sums):
    correct, total = sums[:_ORDERS], sums[_ORDERS : 2 * _ORDERS]
    score = BLEU.compute_bleu(
        correct.tolist(), total.tolist(), int(sums[-2]), int(sums[-1]), "exp"
    ).score
    return 0.0 if math.isnan(score) else score
