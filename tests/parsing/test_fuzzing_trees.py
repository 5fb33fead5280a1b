"""Fuzzing of the tree reader: any input gives trees or a one-line error."""

import pytest
from fuzzing import ANY_TEXT, LONG, SHORT, describe_outcomes, fuzz, is_text
from hypothesis import strategies as st
from tree_samples import random_tree

from keras_transformer.errors import DataError
from keras_transformer.parsing.trees import parse_tree, read_trees

PIECES = [
    *("(", ")", " ", "\n", "(S ", "(NN a)", "(NP (DT the) (NN dog))", "(-NONE- *T*-1)"),
    *("(NP-SBJ-1 ", "(NP=2 ", "( ", "(-LRB- -LRB-)", "(. .)", "((", "))", "()"),
    *("(TOP ", "-", "=", "a", "\t", "\r\n", "\x85", "\u2028", "\ufeff", "\0"),
    "(S (NP) (NN a))",
]
SOUP = st.lists(st.sampled_from(PIECES) | ANY_TEXT, max_size=14).map("".join)


@st.composite
def altered(draw):
    """Trees with a few pieces inserted, removed or replaced."""
    text = "\n".join(str(random_tree(draw(st.integers(0, 99)))) for _ in range(2))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        stop = draw(st.integers(start, min(len(text), start + 9)))
        text = text[:start] + draw(st.sampled_from([*PIECES, ""])) + text[stop:]
    return text


CASES = (SOUP | altered()).map(lambda text: text.encode("utf-8", "surrogatepass"))
CASES |= st.binary(max_size=60)
# Without these cases, files without a tree would be rare.
CASES |= st.text(" \n", max_size=9).map(str.encode)


def check(path):
    def check_case(case):
        path.write_bytes(case)
        try:
            trees = [tree for _, tree in read_trees(path)]
        except DataError as error:
            message = str(error)
            assert message.startswith(f"{path}:") and "\n" not in message
            assert len(message) < 400
            assert message[len(str(path)) + 1].isdigit() or not is_text(case)
            return "refused with file and line"
        for tree in trees:
            assert len(tree.words) == len(tree.tags) > 0
            assert all(
                0 <= start < end <= len(tree.words)
                for _, start, end in tree.constituents
            )
            assert parse_tree(str(tree)) == tree
        return "trees" if trees else "no tree"

    return check_case


@pytest.mark.fault("X05", "trees, or a one-line error that names the file and the line")
@pytest.mark.parametrize("count", [SHORT, pytest.param(LONG, marks=pytest.mark.slow)])
def test_read_trees_gives_trees_or_one_line(tmp_path, record_property, count):
    outcomes = fuzz(CASES, check(tmp_path / "a.trees"), count)
    record_property("happened", describe_outcomes(outcomes))
    assert min(outcomes.values()) > count / 50 and len(outcomes) == 3


def test_read_trees_names_a_file_in_utf16(tmp_path):
    """Found by fuzzing. Such a file has no lines in UTF-8, so none is named."""
    check(tmp_path / "a.trees")("(NN a)".encode("utf-16"))
