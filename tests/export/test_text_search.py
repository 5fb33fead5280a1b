"""Texts of any length in an export, against the `Translator`.

A text that is too long for the model is split into segments, which are translated
separately.
"""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401, its operations are in the graph
from tiny_export import TEXTS

from keras_transformer.opening import open_model
from keras_transformer.serving import ServedModel

pytestmark = pytest.mark.usefixtures("exports_load_once")
# Texts of several sentences or lines. The model reads up to 40 subwords at a time.
PARAGRAPHS = [
    "der Hund läuft. ein Hund und noch ein Hund! die Katze schläft? der Hund. " * 2,
    "Der Hund läuft.\n\n  Die Katze schläft.\r\nEin Hund, noch ein Hund, z. B. er.\n",
    "\nDer Hund und noch ein Hund läuft. Die Katze schläft und läuft.\u2029Ein",
    "der Hund und noch ein Hund und die Katze " * 9,
    "漢字。" * 9,
    "\u3000\u00a0",
    " der Hund\n",
]


@pytest.fixture(scope="module")
def signatures(tiny_signatures):
    return tiny_signatures


def texts_of(tensor):
    return [text.decode() for text in tensor.numpy().ravel()]


@pytest.mark.fault(
    "F19", "an export also translates sentence by sentence; nothing is cut"
)
def test_paragraphs_match_the_translator(
    signatures, tiny_export, tiny_translator, monkeypatch
):
    warnings = []
    monkeypatch.setattr(tiny_translator, "warn", lambda *one: warnings.append(one))
    texts = [*PARAGRAPHS, *TEXTS]
    expected = tiny_translator.n_best(texts, 4)
    # Warnings give the indices of long texts, which are translated in segments.
    assert {0, 3, 4} <= {index for index, _ in warnings} <= {0, 1, 2, 3, 4}
    best = signatures["serving_default"](inputs=tf.constant(texts))
    assert texts_of(best["translations"]) == [ranked[0].text for ranked in expected]
    assert not best["truncated"].numpy().any()
    found = signatures["translate_n_best"](inputs=tf.constant(texts))
    for row, ranked in enumerate(expected):
        assert found["counts"][row] == len(ranked)
        written = texts_of(found["translations"][row])[: len(ranked)]
        assert written == [each.text for each in ranked]
        np.testing.assert_allclose(
            found["scores"][row][: len(ranked)],
            [each.score for each in ranked],
            rtol=1e-4,
            atol=1e-4,
        )
    served = ServedModel(tiny_export).run("serving_default", {"inputs": texts})
    assert served["translations"].tolist() == best["translations"].numpy().tolist()
    assert open_model(tiny_export).translate(texts) == [
        ranked[0].text for ranked in expected
    ]


def test_segments_are_searched_in_bounded_batches(small_batch_export, signatures):
    small = tf.saved_model.load(str(small_batch_export)).signatures["translate_n_best"]
    inputs = tf.constant(PARAGRAPHS)
    found, expected = (
        small(inputs=inputs),
        signatures["translate_n_best"](inputs=inputs),
    )
    for name, value in expected.items():
        if name == "scores":
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4)
        else:
            np.testing.assert_array_equal(found[name], value)


@pytest.mark.fault("F19", "an export cuts a word that is too long, and reports it")
def test_signatures_cut_long_words_and_report_it(signatures, tiny_model):
    tokenizer = tiny_model[1]
    (ids,) = tokenizer.tokenize(["Hundund" * 30]).to_list()
    texts = tf.constant(["Hundund" * 30, "Hund"])
    found = signatures["translate_n_best"](inputs=texts)
    assert found["truncated"].numpy().tolist() == [True, False]
    by_ids = signatures["translate_ids"](
        source_ids=tf.constant([[*ids[:39], tokenizer.end_id]])
    )
    cut = tokenizer.detokenize(by_ids["target_ids"])
    assert found["translations"][0, 0] == cut[0]
    np.testing.assert_allclose(found["scores"][0, 0], by_ids["scores"][0], rtol=1e-5)
    sources = tf.constant(["Hundund" * 30, "Hund", "Hund"])
    targets = tf.constant(["Hund", "Hundund" * 30, "die Katze"])
    for name in ("score", "attend"):
        found = signatures[name](inputs=sources, targets=targets)
        assert found["truncated"].numpy().tolist() == [True, True, False]


@pytest.mark.fault("F19", "an export cuts a text of too many bytes, and reports it")
def test_texts_of_many_segments_are_whole(signatures):
    # Texts of 300 lines, of 300 sentences, of one word, and of too many bytes.
    many = ["a\n" * 299 + "a", "Der Hund. " * 300, "a", " " * 2**20 + "a"]
    found = signatures["serving_default"](inputs=tf.constant(many))
    assert found["truncated"].numpy().tolist() == [False, False, False, True]
    lines, sentences, word, cut = texts_of(found["translations"])
    assert lines == "\n".join([word] * 300) and cut == ""
    one = signatures["serving_default"](inputs=tf.constant(["Der Hund."]))
    (one,) = texts_of(one["translations"])
    assert sentences == " ".join([one] * 300)
