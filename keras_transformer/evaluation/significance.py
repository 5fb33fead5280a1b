"""Paired significance tests of systems, with sacreBLEU."""

import contextlib
import os
from functools import partial
from typing import NamedTuple

from sacrebleu.metrics import CHRF, TER
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
    """A system's corpus score and its comparison with the baseline."""

    name: str
    score: float
    p_value: float | None  # of the difference from the baseline, None for the baseline
    # Mean of the score over the bootstrap resamples, and half the width of its 95%
    # interval. Both are `None` for randomization.
    mean: float | None
    interval: float | None


class Comparison(NamedTuple):
    """The scores of all systems by one metric, the baseline first."""

    metric: str  # sacreBLEU's name
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
    """Tests systems against the first one (Koehn 2004, Riezler and Maxwell 2005).

    Args:
        systems: Mapping of system names to lists of str, one translation per sentence.
            There must be at least two systems. The first is the baseline.
        references: List of str, one reference per sentence. If sentences have several
            references, a list of such lists.
        metrics: Sequence of one or more of "bleu", "chrf" and "ter".
        test: "bootstrap" (Koehn) or "randomization" (Riezler and Maxwell).
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
    """
    unknown = {*metrics} - {"bleu", "chrf", "ter"}
    if unknown or test not in _TESTS:
        raise ValueError(
            "Metrics must be bleu, chrf or ter, and the test bootstrap or "
            f"randomization. Received: {', '.join(metrics)} and {test}."
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
                    _p_value(one, scores[metric][0]),
                    _number(one.mean),
                    _number(one.ci),
                )
                for name, one in zip(scores["System"], scores[metric], strict=True)
            ],
        )
        for metric, signature in signatures.items()
    ]


def _p_value(system, baseline):
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
