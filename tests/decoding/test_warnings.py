"""Warnings about translations."""

import time

import pytest

from keras_transformer.decoding import Translation
from keras_transformer.decoding.warnings import CUT_OFF, EMPTY, add_warnings, find_loop


@pytest.mark.parametrize(
    ("source", "translation", "loop"),
    [
        ("a", "no no no", "no"),
        ("a", "it is very, very good", None),
        ("a b", "x a b c a b c a b c y", "a b c"),
        ("a b", "x a b c a b c y a b c", None),
        ("a", "Fototototototo", "ot"),
        ("a", "....... 1,000,000,000", None),
        ("a", "的的的的 的的 的的 的的", "的的"),
        ("no no no", "nein nein nein", None),
        ("a", "", None),
    ],
)
def test_loops(source, translation, loop):
    assert find_loop(source, translation) == loop


def test_loops_are_found_in_reasonable_time():
    started = time.perf_counter()
    assert find_loop("a", " ".join(map(str, range(9_000))) + " ab" * 3) == "ab"
    assert find_loop("a", "ab c" * 1_000 + "abc" * 1_000) is not None
    assert time.perf_counter() - started < 2


def test_each_translation_has_its_warnings():
    ranked = [
        [Translation("b b b", -1.0), Translation("b", -2.0)],
        [Translation("c", 0.0)],
        [Translation(" ", 0.0)],
        [Translation("", 0.0)],
    ]
    heard = []
    found = add_warnings(
        *(["a", "c", "d", " "], ranked, [[CUT_OFF], [], [], []]),
        lambda *each: heard.append(each),
    )
    loop = 'the translation repeats "b"'
    assert [[each.warnings for each in row] for row in found] == [
        [(CUT_OFF, loop), (CUT_OFF,)],
        [()],
        [(EMPTY,)],
        [()],  # of a blank text
    ]
    assert heard == [(0, CUT_OFF), (0, loop), (2, EMPTY)]
