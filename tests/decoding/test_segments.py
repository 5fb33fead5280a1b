import pytest

from keras_transformer.decoding.segments import split_text


def split(text, max_length):
    return split_text(text, max_length, lambda texts: [len(text) for text in texts])


def test_short_text_is_one_segment():
    assert split("A dog runs. A cat.", 18) == ["A dog runs. A cat."]


def test_text_is_split_after_a_sentence_near_the_middle():
    text = 'One two. Three four five. "Six seven!" Eight nine. Ten.'
    assert split(text, 30) == [
        "One two. Three four five.",
        '"Six seven!" Eight nine. Ten.',
    ]


def test_ideographic_full_stops_need_no_space():
    assert split("一二三四五。六七八九。", 6) == ["一二三四五。", "六七八九。"]


def test_numbers_are_not_split():
    assert split("aaaa 3.14 bbbb", 10) == ["aaaa", "3.14 bbbb"]


def test_text_is_split_at_spaces_and_then_anywhere():
    assert split("aaa bbb ccc ddd", 7) == ["aaa bbb", "ccc ddd"]
    assert split("abcdefghij", 3) == ["ab", "cde", "fg", "hij"]


@pytest.mark.parametrize("max_length", [1, 2, 7, 100])
def test_split_loses_only_white_space(max_length):
    text = "Hi. " + "word, " * 37 + "x" * 53 + " 。end.   \u00a0 Last one! "
    pieces = split(text, max_length)
    assert max(map(len, pieces)) <= max_length
    assert "".join("".join(pieces).split()) == "".join(text.split())


def test_characters_are_never_split():
    assert split_text("ab", 2, lambda texts: [4 * len(text) for text in texts]) == [
        "a",
        "b",
    ]
