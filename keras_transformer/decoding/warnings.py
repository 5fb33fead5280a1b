"""Warnings about translations that are probably bad.

A translation has a warning if a part of the text or of the translation was cut off, if
it is empty or repeats words that its text does not repeat, or if its probability is
low. Others come from `Translator` (divided or untranslated text, required phrases),
`spans` (changed spans and figures, messages of ICU), `glossary` and `markup`.
"""

import re

import numpy as np
from keras import ops

from keras_transformer.decoding.batches import WHITESPACE

CUT_OFF = "the translation was cut off at the maximum length"
LOW_SCORE = "the model is unsure: log-probability {:.2f} per subword, below {}"
# An export reports only whether a part of either was cut off.
TRUNCATED = "the text or its translation was cut off at the export's maximum length"
UNTRANSLATED = "is not translated. The model was not trained with text in this script"
EMPTY = "the translation is empty"
LOOP = 'the translation repeats "{}"'
# Up to eight words, three times in a row, or a part of a word four times.
_LOOP = re.compile(
    r"(?:^|\s)(\S+(?:\s\S+){0,7}?)(?:\s\1){2,}(?=\s|$)|(\S{2,20}?)\2{3,}"
)


def find_loop(source, translation):
    """Returns the words that a translation, but not its source, repeats, or `None`."""
    found = _LOOP.search(translation)
    return None if found is None or _LOOP.search(source) else found[1] or found[2]


def _text_warnings(source, translation):
    """Returns the warnings about a translation that follow from the two texts."""
    if source.strip(WHITESPACE) and not translation.strip(WHITESPACE):
        return [EMPTY]
    loop = find_loop(source, translation)
    return [] if loop is None else [LOOP.format(loop)]


def is_cut_off(sequences, scores, end_id):
    """Returns which rows of a search's result have a hypothesis without an end id.

    `sequences` are int32 `[batch, n, length]` and `scores` float32 `[batch, n]`, -inf
    for empty slots. Returns bool `[batch]`.
    """
    has_end = np.any(np.equal(sequences, end_id), axis=2)
    return np.any(~has_end & (np.asarray(scores) > -np.inf), axis=1)


def mean_log_probs(sequences, scores, search, pad_id, num_forced=0):
    """Returns the mean log-probability per subword of each segment's best translation.

    `sequences` and `scores` are a result of beam search. The first `num_forced` tokens
    have no probability. Returns float32 `[batch]`, zeros if a coverage penalty is a
    part of the scores.
    """
    is_token = ops.cast(ops.not_equal(sequences[:, 0], pad_id), "float32")
    lengths = ops.maximum(ops.sum(is_token, axis=1), 1)
    counts = ops.maximum(lengths - num_forced, 1)
    means = scores[:, 0] * search.penalty(lengths) / counts
    return ops.zeros_like(means) if search.coverage_penalty else means


def export_warnings(outputs, low_score):
    """Returns a list of the warnings about each text that do not follow from texts.

    `outputs` are those of one of its signatures that translate.
    """
    low = -np.inf if low_score is None else low_score
    # Some signatures lack one of them.
    none = np.zeros(len(outputs["translations"]))
    rows = outputs.get("truncated", none), outputs.get("mean_log_probs", none)
    return [
        [TRUNCATED] * int(is_cut) + [LOW_SCORE.format(mean, low)] * int(mean < low)
        for is_cut, mean in zip(*rows, strict=True)
    ]


def output_warnings(texts, outputs, limits):
    """Returns a list of warnings about the best translation of each text of an export.

    `texts` are bytes, and `limits` are `ExportLimits`.
    """
    from keras_transformer.decoding.text import report_untranslated

    best = np.reshape(outputs["translations"], (len(texts), -1))[:, 0]
    kept = report_untranslated(texts, limits.text_options())
    columns = texts, best, export_warnings(outputs, limits.low_score), kept
    return [
        [*warnings, *other, *_text_warnings(_decode(text), _decode(translation))]
        for text, translation, warnings, other in zip(*columns, strict=True)
    ]


def _decode(text):
    return text.decode("utf-8", "replace")


def add_warnings(texts, ranked, warnings, warn, is_text=True):
    """Adds warnings to the translations of texts, and calls `warn`.

    Args:
        texts: List of str.
        ranked: For each text, a list of `Translation`s, best first, with the warnings
            about each of them.
        warnings: For each text, a list of warnings about all its translations.
        warn: Called with the index of a text and a warning about its best translation.
        is_text: Whether the translations are text, not trees, which may repeat parts.

    Returns:
        `ranked` with warnings.
    """

    def add(text, translation, found):
        own = _text_warnings(text, translation.text) if is_text else []
        warnings = *found, *translation.warnings, *own
        return translation._replace(warnings=warnings)

    marked = [
        [add(text, translation, found) for translation in translations]
        for text, translations, found in zip(texts, ranked, warnings, strict=True)
    ]
    for index, (best, *_) in enumerate(marked):
        for warning in best.warnings:
            warn(index, warning)
    return marked


def add_warning(translations, message):
    """Returns translations of one text with one more warning."""
    return [each._replace(warnings=(*each.warnings, message)) for each in translations]
