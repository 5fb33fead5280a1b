"""Warnings about translations that are probably bad.

A translation has a warning if a part of the text or of the translation was cut off.
"""

import numpy as np

CUT_OFF = "the translation was cut off at the maximum length"
# An export reports only whether a part of either was cut off.
TRUNCATED = "the text or its translation was cut off at the export's maximum length"


def is_cut_off(sequences, scores, end_id):
    """Returns which rows of a search's result have a hypothesis without an end id.

    `sequences` are int32 `[batch, n, length]` and `scores` float32 `[batch, n]`, -inf
    for empty slots. Returns bool `[batch]`.
    """
    has_end = np.any(np.equal(sequences, end_id), axis=2)
    return np.any(~has_end & (np.asarray(scores) > -np.inf), axis=1)


def add_warnings(ranked, warnings, warn):
    """Adds the warnings about each text to its translations, and calls `warn`.

    Args:
        ranked: For each text, a list of `Translation`s, best first.
        warnings: For each text, a list of warnings.
        warn: Called with the index of a text and a warning of its best translation.

    Returns:
        `ranked` with warnings.
    """
    marked = [
        [each._replace(warnings=(*found, *each.warnings)) for each in translations]
        for translations, found in zip(ranked, warnings, strict=True)
    ]
    for index, (best, *_) in enumerate(marked):
        for warning in best.warnings:
            warn(index, warning)
    return marked
