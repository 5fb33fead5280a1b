"""BLEU, chrF and TER, computed by sacreBLEU, with sacreBLEU's signatures."""

from typing import NamedTuple

from sacrebleu.metrics import BLEU
from sacrebleu.metrics import CHRF
from sacrebleu.metrics import TER


class Result(NamedTuple):
    """A corpus score from 0 to 100. A lower TER is better, and a TER may exceed 100."""

    metric: str  # sacreBLEU's name, such as "chrF2"
    score: float
    signature: str  # version, tokenizer, case; equal for comparable scores
    text: str  # the line that sacreBLEU prints


def bleu(hypotheses, references, tokenize="13a", lowercase=False) -> Result:
    """Computes corpus BLEU.

    Args:
        hypotheses: List of str, one translation per sentence.
        references: List of str, one reference per sentence. If sentences have several
            references, a list of such lists.
        tokenize: Name of a sacreBLEU tokenizer; `"none"` for text that is already
            tokenized.
        lowercase: Whether to ignore case.

    Raises:
        ValueError: If the lists are empty or their lengths differ.
    """
    # With the tokenizer "none", `force` suppresses sacreBLEU's warning about tokenized
    # text.
    force = tokenize == "none"
    metric = BLEU(tokenize=tokenize, lowercase=lowercase, force=force)
    return score_corpus(metric, hypotheses, references)


def chrf(hypotheses, references, lowercase=False) -> Result:
    """Computes corpus chrF2 (character n-grams up to 6, no word n-grams).

    The texts are passed as for `bleu`.

    Raises:
        ValueError: If the lists are empty or their lengths differ.
    """
    return score_corpus(CHRF(lowercase=lowercase), hypotheses, references)


def ter(hypotheses, references, case_sensitive=False) -> Result:
    """Computes the corpus translation edit rate. By default, case is ignored.

    The texts are passed as for `bleu`.

    Raises:
        ValueError: If the lists are empty or their lengths differ.
    """
    return score_corpus(TER(case_sensitive=case_sensitive), hypotheses, references)


def score_corpus(metric, hypotheses, references) -> Result:
    """Scores a corpus with a metric of sacreBLEU.

    Raises:
        ValueError: If the lists are empty or their lengths differ.
    """
    hypotheses = list(hypotheses)
    references = reference_sets(references)
    lengths = [len(each) for each in references]
    if {*lengths} != {len(hypotheses)} or not hypotheses:
        raise ValueError(
            "There must be one reference per translation, and at least one of each. "
            f"Received: {len(hypotheses)} translations, "
            f"{' and '.join(map(str, lengths))} references."
        )
    score = metric.corpus_score(hypotheses, references)
    signature = str(metric.get_signature())
    return Result(score.name, score.score, signature, score.format())


def reference_sets(references):
    """Returns a list of lists of str, given such a list or a single list of str."""
    references = list(references)
    if references and not isinstance(references[0], str):
        return [list(each) for each in references]
    return [references]
