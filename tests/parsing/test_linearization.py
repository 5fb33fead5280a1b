"""Linearization: handwritten examples, and random trees that survive a round trip.

A linearized tree is a sequence of symbols. In the forms "tags", "numbers" and "XX", a
word's symbol is its tag, its number modulo 128, or XX. In the form "joined", the number
precedes the tag with its brackets.
"""

import random

import pytest
from tree_samples import random_tree

from keras_transformer.parsing.linearization import (
    NUMBERS,
    REPAIRS,
    collect_symbols,
    delinearize,
    linearize,
    source_text,
)
from keras_transformer.parsing.trees import parse_tree

DOG = "(S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .))"


def test_linearize_is_depth_first():
    tree = parse_tree(DOG)
    assert linearize(tree) == "(S (NP (DT) (NN) )NP (VP (VBZ) )VP (.) )S"
    assert linearize(tree, "numbers") == "(S (NP (0) (1) )NP (VP (2) )VP (3) )S"
    assert source_text(tree.words, "numbers") == "(0) The (1) dog (2) barks (3) ."
    # The first word can have any number. After 127, numbers restart at 0.
    assert linearize(tree, "numbers", 126) == (
        "(S (NP (126) (127) )NP (VP (0) )VP (1) )S"
    )
    assert source_text(tree.words, "numbers", 127) == (
        "(127) The (0) dog (1) barks (2) ."
    )
    assert source_text(tree.words, "XX") == "The dog barks ."
    assert linearize(tree, "XX") == "(S (NP (XX) (XX) )NP (VP (XX) )VP (XX) )S"
    assert linearize(tree, "joined", 126) == (
        "(126) (S(NP(DT) (127) (NN))NP (0) (VP(VBZ))VP (1) (.)"
    )
    assert source_text(tree.words, "joined") == "(0) The (1) dog (2) barks (3) ."


def test_delinearize_inverts_linearize():
    for seed in range(1000):
        tree = random_tree(seed)
        for words in ("joined", "tags"):
            back, repairs = delinearize(linearize(tree, words), tree.words)
            assert back == tree
            assert not repairs
        for words in ("numbers", "XX"):
            bare, repairs = delinearize(linearize(tree, words), tree.words)
            assert bare.constituents == tree.constituents
            assert set(bare.tags) == {"XX"}
            assert not repairs


# Symbols, and the tree and repairs that follow from them. The sentence has the words a
# and b, or a, b and c.
REPAIRED = """
(S (DT) (NN) )S
    (S (DT a) (NN b)): no repair
(S (DT) (NN)
    (S (DT a) (NN b)): 1 missing closing brackets
(S (NP (DT) )S (NN)
    (TOP (S (NP (DT a))) (NN b)): 1 missing closing brackets, 1 missing roots
(S (NP (DT) )VP )NP (NN) )S )S
    (S (NP (DT a)) (NN b)): 2 superfluous closing brackets
(S (DT) )S
    (S (DT a) (XX b)): 1 missing words
(S (DT) (VP
    (S (DT a) (VP (XX b))): 1 missing words, 2 missing closing brackets

    (TOP (XX a) (XX b)): 2 missing words, 1 missing roots
(S (A) (B) (NP (C) )NP (D) )S
    (S (A a) (B b)): 2 superfluous words, 1 empty constituents
(A) (B)
    (TOP (A a) (B b)): 1 missing roots
(S (A) )S (S (B) )S
    (TOP (S (A a)) (S (B b))): 1 missing roots
(S (A) x ( ) () (NP) (B) )S
    (S (A a) (NP b)): 4 unknown symbols, 1 superfluous words
(S (VP )VP (A) (B) )S
    (S (A a) (B b)): 1 empty constituents
(S (0) (NP (2) )NP )S
    (S (XX a) (NP (XX b) (XX c))): 1 missing words
(S (0) (0) (1) (2) )S
    (S (XX a) (XX b) (XX c)): 1 superfluous words
(S (1) (0) (2) )S
    (S (XX a) (XX b) (XX c)): 1 missing words, 1 superfluous words
(S (0) (1) (2) (3) )S
    (S (XX a) (XX b) (XX c)): 1 superfluous words
(0) (S(A) (1) (NP(B) (2) (C)
    (S (A a) (NP (B b) (C c))): no repair
(S(A) (NP(B) (C)
    (S (A a) (NP (B b) (C c))): no repair
(0) (S(NP(VP(A))NP (1) (B) (2) (C)
    (S (NP (VP (A a))) (B b) (C c)): no repair
(0) (S(NP(NP(A))NP)NP (1) (B) (2) (C)
    (S (NP (NP (A a))) (B b) (C c)): no repair
(0) (S(A))S (1) (NP(B) (2) (C)
    (TOP (S (A a)) (NP (B b) (C c))): 1 missing roots
(0) (S(A) (1) (B))VP)S)S (2) (C)
    (TOP (S (A a) (B b)) (C c)): 2 superfluous closing brackets, 1 missing roots
(0) (S(A) (1) (B)
    (S (A a) (B b) (XX c)): 1 missing words
(0) (S(A) (2) (NP(C)
    (S (A a) (XX b) (NP (C c))): 1 missing words
(0) (S(A) (1) (2) (C)
    (S (A a) (XX b) (C c)): no repair
(0) (S(A) (1) (B) (1) (VP(B) (2) (C)
    (S (A a) (B b) (VP (C c))): 1 superfluous words
(0) (S(A) (1) (B) (2) (C) (3) (NP(D)
    (S (A a) (B b) (C c)): 1 superfluous words, 1 empty constituents
(0) (S(A) ) (1) (B) ((C) (2) (C)
    (S (A a) (B b) (C c)): 2 unknown symbols
"""
REPAIRED = REPAIRED.strip("\n").split("\n")


@pytest.mark.parametrize(
    ("text", "expected"), [*zip(REPAIRED[::2], REPAIRED[1::2], strict=True)]
)
def test_delinearize_repairs_and_counts_errors(text, expected):
    tree, repairs = delinearize(text, "abc" if " c)" in expected else "ab")
    counts = ", ".join(f"{count} {kind}" for kind, count in repairs.items())
    assert f"    {tree}: {counts or 'no repair'}" == expected


def test_delinearize_inverts_numbers_of_long_sentences():
    tree = random_tree(3, num_words=5 * NUMBERS + 1)
    text = linearize(tree, "numbers")
    assert f"({NUMBERS - 1})" in text and f"({NUMBERS})" not in text
    words = source_text(tree.words, "numbers")
    # The source alternates numbers and words.
    assert words.split()[2 * NUMBERS - 2 : 2 * NUMBERS + 1 : 2] == ["(127)", "(0)"]
    back, repairs = delinearize(text, tree.words)
    assert back.constituents == tree.constituents
    assert not repairs


def test_delinearize_returns_a_valid_tree_for_any_symbols():
    draw = random.Random(2)
    trees = [random_tree(seed) for seed in range(30)]
    known = [
        *collect_symbols(trees),
        *draw.sample(collect_symbols(trees, "joined"), 60),
        "(0)",
        "(3)",
        "(99)",
        "(٣)",
        "(",
        ")",
        "()",
        "((",
        "))(",
        "x",
        "(a)b",
        "▁",
    ]
    seen = set()
    for _ in range(3000):
        words = tuple(f"w{number}" for number in range(draw.randint(1, 12)))
        text = " ".join(draw.choices(known, k=draw.randint(0, 60)))
        tree, repairs = delinearize(text, words)
        assert tree.words == words
        assert len(tree.tags) == len(words)
        # A valid tree survives writing and reading.
        assert parse_tree(str(tree)) == tree
        assert set(repairs) <= set(REPAIRS)
        assert all(count > 0 for count in repairs.values())
        seen |= set(repairs)
    assert seen == set(REPAIRS)


def test_collect_symbols_finds_all_symbols():
    trees = [parse_tree(DOG), parse_tree("(NP (, ,) (NN a))")]
    brackets = {"(NP", "(S", "(VP", ")NP", ")S", ")VP"}
    numbers = {f"({number})" for number in range(NUMBERS)}
    joined = {"(S(NP(DT)", "(NN))NP", "(VP(VBZ))VP", "(.)", "(NP(,)", "(NN)"}
    for words, expected in {
        "tags": brackets | {"(,)", "(.)", "(DT)", "(NN)", "(VBZ)"},
        "XX": brackets | {"(XX)"},
        "numbers": brackets | numbers,
        "joined": joined | numbers,
    }.items():
        assert collect_symbols(trees, words) == sorted(expected)


def test_numeric_tags_and_unknown_forms_are_rejected():
    """Numeric tags would become numbers of words, and `delinearize` another tree."""
    tree = parse_tree("(S (NP (0 a) (NN b)) (VP (2 c)))")
    for words in ("joined", "tags"):
        with pytest.raises(ValueError, match="the tag '0' of 'a' is a number"):
            linearize(tree, words)
    back, _ = delinearize(linearize(tree, "numbers"), tree.words)
    assert back.constituents == tree.constituents
    for call in (linearize, lambda tree, words: source_text(tree.words, words)):
        with pytest.raises(
            ValueError, match=r"`linearization` must be one of joined, .*joind"
        ):
            call(tree, "joind")
