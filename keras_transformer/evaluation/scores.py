"""BLEU, chrF and TER, computed by sacreBLEU, with sacreBLEU's signatures."""

import functools
import logging
import re
from typing import NamedTuple

from sacrebleu.metrics import BLEU, CHRF, TER

logger = logging.getLogger(__name__)

# sacreBLEU's tokenizers for scripts without spaces between words, which 13a and intl do
# not split. Japanese texts have Chinese characters, too, so kana come first.
_UNSPACED = {
    "ja-mecab": "[\u3040-\u30ff]",
    "zh": "[\u3400-\u4dbf\u4e00-\u9fff]",
    "char": "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]",  # Thai, Lao, Burmese, Khmer
}
# Minimum fraction of characters in such a script, and number of references to look at.
_UNSPACED_SHARE = 0.2
_NUM_SAMPLES = 1_000


class CorpusScore(NamedTuple):
    """The score of a corpus by BLEU, chrF or TER.

    Attributes:
        metric: sacreBLEU's name of the metric, such as `"chrF2"`.
        score: The score, from 0 to 100. A TER may exceed 100, and a lower one is
            better.
        signature: sacreBLEU's signature: version, tokenizer and case. Scores with equal
            signatures can be compared.
        text: The line that sacreBLEU prints.

    Examples:
        >>> score = kt.evaluation.bleu(["A dog runs."], ["A dog runs fast."])
        >>> score.text.split(" (")[0]
        'BLEU = 49.76 100.0/66.7/50.0/50.0'
        >>> score.signature.rpartition("|")[0]
        'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp'
    """

    metric: str
    score: float
    signature: str
    text: str


def bleu(hypotheses, references, tokenize="13a", lowercase=False) -> CorpusScore:
    """Computes corpus BLEU.

    Args:
        hypotheses: List of str, one translation per sentence.
        references: List of str, one reference per sentence. If sentences have several
            references, a list of such lists.
        tokenize: Name of a sacreBLEU tokenizer; `"none"` for text that is already
            tokenized.
        lowercase: Whether to ignore case.

    Returns:
        `CorpusScore`, whose `score` is in percent.

    Raises:
        ValueError: If the lists are empty or their lengths differ.

    Examples:
        >>> round(kt.evaluation.bleu(["A dog runs."], ["A dog runs fast."]).score, 1)
        49.8
    """
    metric = bleu_metric(tokenize, lowercase)
    return score_corpus(metric, hypotheses, references, tokenize)


def bleu_metric(tokenize, lowercase, **options):
    """Returns sacreBLEU's metric."""
    # With the tokenizer "none", `force` suppresses a warning about tokenized text.
    force = tokenize == "none"
    return BLEU(tokenize=tokenize, lowercase=lowercase, force=force, **options)


def chrf(hypotheses, references, lowercase=False) -> CorpusScore:
    """Computes corpus chrF2 (character n-grams up to 6, no word n-grams).

    Args:
        hypotheses: List of str, one translation per sentence.
        references: List of str, or a list of such lists, as for `evaluation.bleu`.
        lowercase: Whether to ignore case.

    Returns:
        `CorpusScore`, whose `score` is in percent.

    Raises:
        ValueError: If the lists are empty or their lengths differ.

    Examples:
        >>> score = kt.evaluation.chrf(["Ein Hund läuft."], ["Der Hund läuft."])
        >>> print(score.metric, f"{score.score:.1f}")
        chrF2 70.6
    """
    return score_corpus(CHRF(lowercase=lowercase), hypotheses, references)


def ter(hypotheses, references, case_sensitive=False) -> CorpusScore:
    """Computes the corpus translation edit rate. By default, case is ignored.

    Args:
        hypotheses: List of str, one translation per sentence.
        references: List of str, or a list of such lists, as for `evaluation.bleu`.
        case_sensitive: Whether case counts.

    Returns:
        `CorpusScore`, whose `score` is in percent. Lower is better.

    Raises:
        ValueError: If the lists are empty or their lengths differ.

    Examples:
        >>> round(kt.evaluation.ter(["A dog runs."], ["A dog runs fast."]).score, 1)
        50.0
    """
    return score_corpus(TER(case_sensitive=case_sensitive), hypotheses, references)


def score_corpus(metric, hypotheses, references, tokenize=None) -> CorpusScore:
    """Scores a corpus with a metric of sacreBLEU."""
    hypotheses = list(hypotheses)
    references = reference_sets(references)
    check_counts([hypotheses], references)
    name = type(metric).__name__.lower()
    warn_of_references([hypotheses], references, [name], tokenize)
    score = metric.corpus_score(hypotheses, references)
    signature = str(metric.get_signature())
    return CorpusScore(score.name, score.score, signature, score.format())


def check_counts(systems, references):
    """Raises `ValueError` unless all lists have the same length, at least 1."""
    found = [" and ".join(str(len(each)) for each in s) for s in (systems, references)]
    lengths = {len(each) for each in (*systems, *references)}
    if not systems or len(lengths) > 1 or 0 in lengths:
        raise ValueError(
            "There must be one translation per reference, and at least one of each. "
            f"Received: {found[0] or 0} translations, {found[1]} references."
        )


def reference_sets(references):
    """Returns a list of lists of str, given such a list or a single list of str."""
    references = list(references)
    if references and not isinstance(references[0], str):
        return [list(each) for each in references]
    return [references]


def warn_of_references(systems, references, metrics, tokenize):
    """Logs a warning if the references make BLEU or chrF useless."""
    text = "".join("".join(references[0][:_NUM_SAMPLES]).split())
    for name, script in _UNSPACED.items():
        is_frequent = len(re.findall(script, text)) > _UNSPACED_SHARE * len(text)
        if "bleu" in metrics and tokenize in ("13a", "intl") and is_frequent:
            _warn_once(
                f"BLEU's tokenizer {tokenize} does not split the words of these "
                f"references. Use {name} (--tokenize, or evaluation.tokenize in a "
                "recipe)"
            )
            break
    if "chrf" not in metrics:
        return
    empty = [
        number
        for number, texts in enumerate(zip(*references, strict=True), start=1)
        if not "".join(texts).strip()
        and any(system[number - 1].strip() for system in systems)
    ]
    if empty:
        _warn_once(
            f"chrF omits {len(empty):,} sentence(s) whose reference is empty but whose "
            f"translation is not, the first is {empty[0]}"
        )


@functools.cache
def _warn_once(message):
    """Logs a warning, but does not repeat it in each validation of a run."""
    logger.warning(message)
