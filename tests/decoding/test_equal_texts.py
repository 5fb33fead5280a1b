"""N-best lists contain each text only once, in Python and in an export."""

import numpy as np
import pytest
import tensorflow as tf
import tiny_export

import keras_transformer as kt
from keras_transformer.export.searches import EMPTY_SCORE, merge_n_best
from keras_transformer.export.signatures import Signatures

SEARCH = kt.BeamSearch(beam_size=3, extra_length=5)


def rows_of(tokenizer, texts):
    """Returns int32 `[texts, 9]`: ids of each list of subwords, the end id, padding."""
    pieces = {piece: number for number, piece in enumerate(tokenizer.pieces())}
    rows = [[*(pieces[piece] for piece in text), tokenizer.end_id] for text in texts]
    return np.array([row + [0] * (9 - len(row)) for row in rows], "int32")


@pytest.fixture(scope="module")
def found(tiny_model):
    """Sequences and scores of two sentences, as `beam_search` returns them.

    The six hypotheses of the first sentence spell three texts. The three of the second
    spell one.
    """
    whole, spelled = ["▁Hund"], ["▁H", "u", "n", "d"]
    other, same, third = ["▁ein"], ["▁", "ein"], ["▁Ka", "tze"]
    first = rows_of(tiny_model[1], [spelled, other, whole, same, third, whole])
    second = np.zeros_like(first)
    second[:3] = rows_of(tiny_model[1], [other, same, other])
    scores = np.array([-1.0, -2, -2.5, -3, -4, -5], "float32")
    scores = np.stack([scores, np.where(np.arange(6) < 3, scores, -np.inf)])
    return np.stack([first, second]), scores


EXPECTED = [[("Hund", -1.0), ("ein", -2.0), ("Katze", -4.0)], [("ein", -1.0)]]


def test_translator_merges_equal_texts(tiny_model, found, monkeypatch):
    translator = kt.Translator(*tiny_model, search=SEARCH)
    monkeypatch.setattr(translator, "_compile", lambda *_, **__: lambda *_: found)
    for n in (1, 2, 3):
        assert translator.n_best(["a", "b"], n) == [each[:n] for each in EXPECTED]


def test_signature_merges_equal_texts(tiny_model, found, monkeypatch):
    signatures = Signatures(*tiny_model, SEARCH)
    fixed = lambda *_: map(tf.constant, found)  # noqa: E731
    monkeypatch.setattr(signatures._text_search, "_search", fixed)
    outputs = tf.function(signatures.translate_n_best)(tf.constant(["a", "b"]))
    assert outputs["counts"].numpy().tolist() == [3, 1]
    texts, scores = outputs["translations"].numpy(), outputs["scores"].numpy()
    for row, expected in enumerate(EXPECTED):
        missing = 3 - len(expected)
        assert [text.decode() for text in texts[row]] == [
            *(text for text, _ in expected),
            *[""] * missing,
        ]
        expected_scores = [score for _, score in expected] + [EMPTY_SCORE] * missing
        np.testing.assert_array_equal(scores[row], np.float32(expected_scores))


def test_first_text_is_kept_even_without_a_score():
    texts, scores, counts = merge_n_best(
        tf.constant([["a", "a", "b"]]), tf.constant([[np.nan, np.nan, np.nan]]), 2
    )
    assert (texts.numpy()[0, 0], counts.numpy().tolist()) == (b"a", [1])
    assert np.isnan(scores[0, 0])


def test_n_best_lists_contain_different_texts():
    """The weights are random, so many hypotheses have the same text."""
    model, tokenizer = tiny_export.tiny_model(num_layers=1)
    search = kt.BeamSearch(beam_size=8, extra_length=3)
    lines = ["der Hund", "die Katze schläft", "x"]
    translator = kt.Translator(model, tokenizer, search=search)
    signatures = Signatures(model, tokenizer, search)
    ranked = translator.n_best(lines)
    for each in ranked:
        assert len({text for text, _ in each}) == len(each) > 4
        assert [score for _, score in each] == sorted(
            (score for _, score in each), reverse=True
        )
    outputs = signatures.translate_n_best(tf.constant(lines))
    texts = [[text.decode() for text in row] for row in outputs["translations"].numpy()]
    counts = outputs["counts"].numpy().tolist()
    assert counts == list(map(len, ranked))
    for row, count, each in zip(texts, counts, ranked, strict=True):
        assert row[:count] == [text for text, _ in each]
