"""Texts from which a tokenizer cannot learn directly."""

import pytest

from keras_transformer import pipelines


@pytest.mark.parametrize("kind", ["bpe", "word_piece"])
def test_training_skips_texts_that_are_not_utf8(kind):
    texts = ["der Hund läuft", "ein Hund und noch ein Hund"] * 20
    expected = pipelines.train_tokenizer(kind, texts, 292).fingerprint()
    found = pipelines.train_tokenizer(kind, [*texts, "Hund \ud800"], 292)
    assert found.fingerprint() == expected
    with pytest.raises(ValueError, match="`max_sentences` must be at least 1"):
        pipelines.train_tokenizer(kind, texts, 280, max_sentences=0)


def test_training_learns_from_texts_of_any_length():
    """SentencePiece itself ignores texts of more than 65,536 bytes."""
    long_text = "zebra quux " * 8000
    tokenizer = pipelines.train_tokenizer("bpe", [long_text, "a b c"], 285)
    pieces = tokenizer.pieces()
    ids = tokenizer.tokenize(["zebra quux"]).to_list()[0]
    assert [pieces[number] for number in ids] == ["\u2581zebra", "\u2581quux"]
