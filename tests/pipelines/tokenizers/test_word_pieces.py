"""WordPiece: segmentations by hand, training, and invalid files.

"▁" in a piece is a space, and "##" marks a piece that continues a word.
"""

import json

import pytest

from keras_transformer.errors import DataError
from keras_transformer.pipelines import load_tokenizer, train_tokenizer
from keras_transformer.pipelines.tokenizers.word_pieces import (
    BYTE_PIECES,
    SPECIAL_PIECES,
    WordPieceTokenizer,
)

SENTENCES = [
    "A man rides a bike, 27 times.",
    "Two dogs run (fast) in the snow!",
    "The man's other dog is 42 years old.",
    "Drei Männer und 13 Hunde rennen schnell im Schnee.",
] * 7


def test_word_pieces_match_hand_calculation():
    pieces = ["a", "b", "c", "##a", "##b", "##c", ".", "##."]
    pieces += ["▁ab", "##bc", "▁a", "##cab", "▁.", "##ca"]
    vocabulary = [*SPECIAL_PIECES, *BYTE_PIECES, "▁", *pieces]
    tokenizer = WordPieceTokenizer(vocabulary)

    def ids(*expected):
        return [vocabulary.index(piece) for piece in expected]

    cases = {
        # Greedy longest match, from left to right.
        "abcab": ids("▁ab", "##cab"),
        "acabc": ids("▁a", "##cab", "##c"),
        "abc": ids("▁ab", "##c"),
        "abc.": ids("▁ab", "##c", "."),
        "b .c": ids("▁", "##b", "▁.", "c"),
        "  a": ids("▁", "▁", "▁a"),
        "ba": ids("▁", "##b", "##a"),
        # The alphabet lacks ä, so it becomes two bytes, each of which is a word. The
        # next word is "b": it has no "##" because it does not continue a word, and no
        # "▁" because no space precedes it.
        "aäb": ids("▁a", BYTE_PIECES[0xC3], BYTE_PIECES[0xA4], "b"),
    }
    assert tokenizer.tokenize(list(cases)).to_list() == list(cases.values())


def test_empty_text_has_no_pieces():
    tokenizer = train_tokenizer("word_piece", SENTENCES, 360)
    rows = tokenizer.tokenize([])
    assert rows.shape[0] == 0 and rows.dtype == "int32"
    assert tokenizer.tokenize(["", "Hund"]).row_lengths().numpy()[0] == 0


def test_word_pieces_learn_frequent_words():
    tokenizer = train_tokenizer("word_piece", SENTENCES, 360)
    ids = tokenizer.tokenize(["Two dogs run (fast)"]).to_list()[0]
    assert len(ids) < len("Two dogs run (fast)") / 1.8
    # All characters of the text have a piece, so no bytes are used.
    flat = tokenizer.tokenize(SENTENCES).flat_values.numpy()
    assert flat.min() >= len(SPECIAL_PIECES) + len(BYTE_PIECES)


def test_word_pieces_reject_invalid_files(tmp_path):
    path = tmp_path / "tokenizer.json"
    good = [*SPECIAL_PIECES, *BYTE_PIECES, "▁", "a", "##a"]
    for vocabulary, problem in [
        (good[1:], "begin with"),
        ([*good, "a"], "no duplicate pieces"),
        ([*good, 3], "not a WordPiece tokenizer"),
    ]:
        fields = {"kind": "word_piece", "split_digits": False, "vocabulary": vocabulary}
        path.write_text(json.dumps(fields), encoding="utf-8")
        with pytest.raises(DataError, match=rf"tokenizer\.json: .*{problem}"):
            load_tokenizer(tmp_path)
