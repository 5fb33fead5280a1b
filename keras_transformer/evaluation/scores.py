"""BLEU, chrF and TER exactly as sacreBLEU computes and signs them."""

from typing import NamedTuple

from sacrebleu.metrics import BLEU
from sacrebleu.metrics import CHRF
from sacrebleu.metrics import TER


class Result(NamedTuple):
    """A corpus score, 0 to 100 (TER: lower is better, may exceed 100)."""

    metric: str  # sacreBLEU's name of the metric, such as "chrF2"
    score: float
    signature: str  # what makes the figure comparable: version, tokenizer, case
    text: str  # sacreBLEU's own line


def bleu(hypotheses, references, tokenize="13a", lowercase=False) -> Result:
    """Corpus BLEU.

    Args:
        hypotheses: list of str, one translation per sentence.
        references: list of str, as many.
        tokenize: sacreBLEU's tokenizer; `"none"` for text tokenised already.
        lowercase: compare without case.

    Raises:
        ValueError: the two lists differ in length or are empty.
    """
    # Without `force`, sacreBLEU warns of tokenised text where it was said to be such.
    force = tokenize == "none"
    metric = BLEU(tokenize=tokenize, lowercase=lowercase, force=force)
    return _score(metric, hypotheses, references)


def chrf(hypotheses, references, lowercase=False) -> Result:
    """Corpus chrF2 (character n-grams up to 6, no word n-grams)."""
    return _score(CHRF(lowercase=lowercase), hypotheses, references)


def ter(hypotheses, references, case_sensitive=False) -> Result:
    """Corpus translation edit rate; like sacreBLEU's, without case by default."""
    return _score(TER(case_sensitive=case_sensitive), hypotheses, references)


def _score(metric, hypotheses, references):
    hypotheses = list(hypotheses)
    references = list(references)
    if len(hypotheses) != len(references) or not references:
        raise ValueError(
            "There must be as many translations as references, at least one. "
            f"Received: {len(hypotheses)} translations, {len(references)} references"
        )
    score = metric.corpus_score(hypotheses, [references])
    signature = str(metric.get_signature())
    return Result(score.name, score.score, signature, score.format())
