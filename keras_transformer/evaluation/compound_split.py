"""BLEU as in tensor2tensor's script for the paper's Table 2.

Texts are split into Moses tokens, and compounds at hyphens.
"""

import functools
import importlib.metadata
import re

from sacrebleu.metrics import BLEU

from keras_transformer.evaluation.scores import (
    CorpusScore,
    reference_sets,
    score_corpus,
)

# The Moses normalizer replaces only some of these quotes.
_QUOTES = str.maketrans(dict.fromkeys("„“”«»", '"') | dict.fromkeys("‚‘’‹›", "'"))
_HYPHEN = re.compile(r"(\S)-(\S)")


def compound_split_tokens(text, language="de"):
    """Tokenizes a text for compound-split BLEU.

    Unicode quotes and punctuation become ASCII. The Moses tokenizer splits words and
    escapes special characters as XML entities. A hyphen between non-spaces becomes
    the separate word `##AT##-##AT##`, except the second one of `a-b-c`. Case is
    preserved.

    Args:
        text: Untokenized text.
        language: Language code, which selects the Moses tokenizer's abbreviations.

    Returns:
        The tokens, joined by spaces.

    Raises:
        ValueError: If the Moses tokenizer has no rules for the language.

    Examples:
        >>> kt.evaluation.compound_split_tokens("Der Jazz-Abend, „schön“.")
        'Der Jazz ##AT##-##AT## Abend , &quot; schön &quot; .'
    """
    normalizer, tokenizer = _moses(language)
    text = normalizer.replace_unicode_punct(text.translate(_QUOTES))
    text = tokenizer.tokenize(text, return_str=True)
    return _HYPHEN.sub(r"\1 ##AT##-##AT## \2", text)


def compound_split_bleu(hypotheses, references, language="de") -> CorpusScore:
    """Computes tokenized, case-sensitive, unsmoothed BLEU with split compounds.

    The score is usually higher than sacreBLEU's for the same text. Use it only to
    compare with the paper and with other papers of that time.

    Args:
        hypotheses: List of str, untokenized.
        references: List of str, untokenized, one reference per sentence. If sentences
            have several references, a list of such lists.
        language: Language code of the target.

    Returns:
        `CorpusScore`, whose `score` is in percent.

    Raises:
        ValueError: If the lists are empty or their lengths differ, or the Moses
            tokenizer has no rules for the language.

    Examples:
        >>> score = kt.evaluation.compound_split_bleu(
        ...     ["Der Jazz-Abend war sehr schön."], ["Der Jazz-Klub war sehr schön."]
        ... )
        >>> round(score.score, 1)
        50.0
    """
    hypotheses, *references = (
        [compound_split_tokens(text, language) for text in texts]
        for texts in (hypotheses, *reference_sets(references))
    )
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    result = score_corpus(metric, hypotheses, references)
    version = importlib.metadata.version("sacremoses")
    signature = result.signature.replace(
        "tok:none", f"tok:moses-{language}-{version}-compounds"
    )
    return result._replace(metric="compound-split BLEU", signature=signature)


@functools.cache
def moses_languages():
    """Returns the codes of the languages for which the Moses tokenizer has rules."""
    from sacremoses.corpus import NonbreakingPrefixes

    # The keys also contain names of languages, which select only a part of the rules.
    codes = NonbreakingPrefixes().available_langs.values()
    return sorted({*codes, "ja", "ko"})


@functools.cache
def _moses(language):
    # The import is slow, and other scores do not need it.
    import sacremoses

    if language not in moses_languages():
        known = ", ".join(moses_languages())
        raise ValueError(f"`language` must be one of {known}. Received: {language!r}.")
    return (
        sacremoses.MosesPunctNormalizer(lang=language),
        sacremoses.MosesTokenizer(lang=language),
    )
