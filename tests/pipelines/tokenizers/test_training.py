"""Training of tokenizers, and WordPiece by hand."""

import json
import math
from collections import Counter

import pytest
from tokenizer_kinds import NASTY, SENTENCES, decode, make

from keras_transformer.errors import DataError
from keras_transformer.pipelines import load_tokenizer, train_tokenizer
from keras_transformer.pipelines.tokenizers.registry import reservoir_sample
from keras_transformer.pipelines.tokenizers.word_pieces import (
    BYTE_PIECES,
    SPECIAL_PIECES,
    WordPieceTokenizer,
)

both_kinds = pytest.mark.parametrize("kind", ["bpe", "word_piece"])


@both_kinds
def test_training_is_deterministic_and_skips_unusual_texts(kind):
    texts = [None, "", " ", "Hund \ud800", *SENTENCES]
    expected = make(kind)
    assert train_tokenizer(kind, iter(texts), 380).fingerprint() == (
        expected.fingerprint()
    )
    assert expected.vocabulary_size == 380
    special = expected.pad_id, expected.unknown_id, expected.start_id, expected.end_id
    assert special == (0, 1, 2, 3)
    texts = ["a\x00b", "a\u2581b\uf8fe\ue000", "x" * 70_000, "ab ab"]
    tokenizer = train_tokenizer(kind, texts * 3 + SENTENCES, 380)
    assert decode(tokenizer.detokenize(tokenizer.tokenize(NASTY))) == NASTY


@both_kinds
def test_training_names_the_possible_sizes(kind):
    with pytest.raises(DataError, match=r"vocabulary_size=9 must be at least") as error:
        train_tokenizer(kind, SENTENCES, 9)
    smallest = int(str(error.value).split("at least ")[1].split(",")[0])
    assert train_tokenizer(kind, SENTENCES, smallest).vocabulary_size == smallest
    with pytest.raises(DataError, match=f"at least {smallest},"):
        train_tokenizer(kind, SENTENCES, smallest - 1)
    texts = ["abc abd", "abc ade"]
    with pytest.raises(DataError, match=r"vocabulary_size=9000 .* value is") as error:
        train_tokenizer(kind, texts, 9000)
    largest = int(str(error.value).rstrip(".").split()[-1])
    assert train_tokenizer(kind, texts, largest).vocabulary_size == largest
    with pytest.raises(DataError, match=f"possible value is {largest}"):
        train_tokenizer(kind, texts, largest + 1)


@both_kinds
def test_training_rejects_wrong_arguments(kind):
    for nothing in ([], [None], ["", "  "]):
        with pytest.raises(DataError, match="at least one text"):
            train_tokenizer(kind, nothing, 400)
    with pytest.raises(ValueError, match="`max_sentences` must be at least 1"):
        train_tokenizer(kind, SENTENCES, 280, max_sentences=0)
    with pytest.raises(DataError, match=r"kind must be one of bpe, word_piece.*'bep'"):
        train_tokenizer("bep", SENTENCES, 400)


@both_kinds
def test_split_digits_separates_digits(kind):
    for digits in (False, True):
        tokenizer = make(f"{kind} digits" if digits else kind)
        ids = tokenizer.tokenize(["42 times 27 and 13 or 4x2"]).to_list()[0]
        pieces = decode(tokenizer.detokenize([[each] for each in ids]))
        numbers = [each for each in pieces if any(map(str.isdigit, each))]
        assert max(map(len, numbers)) == (1 if digits else 2)


@both_kinds
@pytest.mark.fault("F18", "encoded as bytes, never unknown")
def test_rare_characters_are_spelled_in_bytes(kind):
    ids = make(kind).tokenize(["日"]).to_list()[0]
    assert len([each for each in ids if 4 <= each < 260]) == 3  # ids of bytes


def test_training_learns_from_texts_of_any_length():
    """SentencePiece itself ignores texts of more than 65,536 bytes."""
    tokenizer = train_tokenizer("bpe", ["zebra quux " * 8000, "a b c"], 285)
    pieces = tokenizer.pieces()
    ids = tokenizer.tokenize(["zebra quux"]).to_list()[0]
    assert [pieces[number] for number in ids] == ["\u2581zebra", "\u2581quux"]


def test_reservoir_sample_is_uniform_and_returns_short_inputs_whole():
    assert reservoir_sample(iter(range(7)), 7) == list(range(7))
    counts = Counter(
        item
        for seed in range(3000)
        for item in reservoir_sample(iter(range(11)), 4, seed)
    )
    # Each of 11 items is drawn with probability 4/11, about 1,091 times. The tolerance
    # is 5 standard deviations.
    deviation = math.sqrt(3000 * 4 / 11 * 7 / 11)
    assert all(abs(counts[item] - 12000 / 11) < 5 * deviation for item in range(11))


def test_word_pieces_match_hand_calculation():
    """ "▁" in a piece is a space, and "##" marks a piece that continues a word."""
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


def test_word_pieces_reject_invalid_files(tmp_path):
    path = tmp_path / "tokenizer.json"
    good = [*SPECIAL_PIECES, *BYTE_PIECES, "▁", "a", "##a"]
    for vocabulary, problem in [
        (good[1:], "begin with"),
        ([*good, "a"], "no duplicate subwords"),
        ([*good, 3], "not a WordPiece tokenizer"),
    ]:
        fields = {"kind": "word_piece", "split_digits": False, "vocabulary": vocabulary}
        path.write_text(json.dumps(fields), encoding="utf-8")
        with pytest.raises(DataError, match=rf"tokenizer\.json: .*{problem}"):
            load_tokenizer(tmp_path)
