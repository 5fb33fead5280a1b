"""Whether systems differ by more than chance: sacreBLEU's paired tests."""

import contextlib
import os
from typing import NamedTuple

from sacrebleu.metrics import BLEU
from sacrebleu.metrics import CHRF
from sacrebleu.metrics import TER
from sacrebleu.significance import PairedTest

# sacreBLEU's own defaults.
_TESTS = {"bootstrap": ("bs", 1_000), "randomization": ("ar", 10_000)}
_SEED = "SACREBLEU_SEED"


class SystemScore(NamedTuple):
    """A system's corpus score and how it compares with the baseline."""

    name: str
    score: float
    p_value: float | None  # of being as good as the baseline; None for itself
    mean: float | None  # over the bootstrap's resamples
    interval: float | None  # half of the 95 % confidence interval around it


class Comparison(NamedTuple):
    """One metric of all systems, the baseline first."""

    metric: str  # sacreBLEU's name of it
    signature: str
    systems: list[SystemScore]


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
    """Paired tests of systems against the first of them (Koehn 2004; Riezler 2005).

    Args:
        systems: mapping of names to lists of str, at least two; the first is the
            baseline.
        references: list of str, as many as each system has.
        metrics: of "bleu", "chrf" and "ter".
        test: "bootstrap", or "randomization" for approximate randomisation.
        num_samples: resamples or trials. None: 1,000 or 10,000.
        seed: int above 0, of the resampling.
        tokenize: sacreBLEU's tokenizer for BLEU.
        lowercase: BLEU and chrF without case.

    Returns:
        List of `Comparison`, one for each metric.

    Raises:
        ValueError: fewer than two systems, or lists of other lengths.
    """
    lengths = [len(hypotheses) for hypotheses in systems.values()]
    if len(systems) < 2 or set(lengths) != {len(references)} or not references:
        raise ValueError(
            "There must be at least two systems, each with as many translations as "
            f"there are references. Received: {lengths} and {len(references)}"
        )
    # Without `force`, sacreBLEU warns of tokenised text where it was said to be such.
    makers = {
        "bleu": lambda given: BLEU(
            **{"tokenize": tokenize, "lowercase": lowercase},
            **{"force": tokenize == "none", "references": given},
        ),
        "chrf": lambda given: CHRF(lowercase=lowercase, references=given),
        "ter": lambda given: TER(references=given),
    }
    # References are taken apart once, for all systems.
    made = {name: makers[name]([references]) for name in metrics}
    kind, usual = _TESTS[test]
    with _seeded(seed):
        paired = PairedTest(
            list(systems.items()),
            made,
            references=None,
            test_type=kind,
            n_samples=num_samples or usual,
        )
        signatures, scores = paired()
    return [
        Comparison(
            metric,
            str(signature),
            [
                SystemScore(
                    name, *map(_number, (one.score, one.p_value, one.mean, one.ci))
                )
                for name, one in zip(scores["System"], scores[metric], strict=True)
            ],
        )
        for metric, signature in signatures.items()
    ]


def _number(value):
    return None if value is None else float(value)


@contextlib.contextmanager
def _seeded(seed):
    """SacreBLEU takes the seed of its resampling from the environment only."""
    before = os.environ.get(_SEED)
    os.environ[_SEED] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SEED]
        else:
            os.environ[_SEED] = before
