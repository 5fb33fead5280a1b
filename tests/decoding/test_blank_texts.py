"""Translations of texts that contain only whitespace, in Python and in an export."""

import sys
import unicodedata

import numpy as np
import tensorflow as tf

from keras_transformer.decoding.batches import WHITESPACE

BLANK = [*WHITESPACE, "", "\u3000\u00a0 \t\u2003", WHITESPACE]


def test_whitespace_matches_unicode():
    spaces = {
        chr(code)
        for code in range(sys.maxunicode + 1)
        if chr(code).isspace() or unicodedata.category(chr(code)) in ("Zs", "Zl", "Zp")
    }
    # The others are the zero-width space, the word joiner, and the byte order mark.
    assert set(WHITESPACE) == spaces | {"\u200b", "\u2060", "\ufeff"}
    assert len(WHITESPACE) == len(set(WHITESPACE))


def test_blank_texts_have_empty_translations(tiny_translator, tiny_signatures):
    lines = [*BLANK, "\u3000der", "der\u00a0Hund"]
    ranked = tiny_translator.n_best(lines, 1)
    assert ranked[: len(BLANK)] == [[("", 0.0, ())]] * len(BLANK)
    best = [each[0] for each in ranked]
    assert all(each.score < 0 for each in best[-2:])

    outputs = tiny_signatures["serving_default"](inputs=tf.constant(lines))
    texts = [text.decode() for text in outputs["translations"].numpy()]
    assert texts == [each.text for each in best]
    np.testing.assert_allclose(
        outputs["scores"], [each.score for each in best], rtol=1e-5
    )
