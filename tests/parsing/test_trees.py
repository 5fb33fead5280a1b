"""The tree reader: handwritten files, random trees, and a separate bracket count."""

import gzip
import re

import pytest
from tree_samples import random_tree

from keras_transformer.errors import DataError
from keras_transformer.parsing.trees import (
    parse_tree,
    read_trees,
    split_words,
)

TRACES = """( (S
    (NP-SBJ-1 (NP (DT The) (NN gene)) (-LRB- -LRB-) (NP (NN Apc)) (-RRB- -RRB-))
    (VP=2 (VBZ is) (VP (VBN required)
      (NP-1 (-NONE- *)) (PP-PRP (IN for) (NP (PRP$ its) (NN skin)))))
    (SBAR (-NONE- 0) (S (-NONE- *T*-1))) (. .)))
"""


def read(tmp_path, text, name="a.trees"):
    path = tmp_path / name
    content = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return list(read_trees(path))


@pytest.mark.parametrize("name", ["a.mrg", "a.mrg.gz"])
def test_read_trees_reads_penn_treebank_files(tmp_path, name):
    ((line, tree),) = read(tmp_path, "\n" + TRACES, name)
    assert line == 2
    assert " ".join(tree.words) == "The gene -LRB- Apc -RRB- is required for its skin ."
    assert " ".join(tree.tags) == "DT NN -LRB- NN -RRB- VBZ VBN IN PRP$ NN ."
    assert tree.constituents == (
        ("S", 0, 11),
        ("NP", 0, 5),
        ("NP", 0, 2),
        ("NP", 3, 4),
        ("VP", 5, 10),
        ("VP", 6, 10),
        ("PP", 7, 10),
        ("NP", 8, 10),
    )
    assert str(tree) == (
        "(S (NP (NP (DT The) (NN gene)) (-LRB- -LRB-) (NP (NN Apc)) (-RRB- -RRB-)) "
        "(VP (VBZ is) (VP (VBN required) (PP (IN for) (NP (PRP$ its) (NN skin))))) "
        "(. .))"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(NN a)", ["(NN a)"]),
        ("((NN a))", ["(NN a)"]),
        ("((S (NN a)) )", ["(S (NN a))"]),
        ("( (S (NN a)) (S (NN b)))", ["(TOP (S (NN a)) (S (NN b)))"]),
        ("( (NN a) (NN b))", ["(TOP (NN a) (NN b))"]),
        ("( (S (NN a)) (-NONE- *))", ["(S (NN a))"]),
        ("(TOP (S (NN a)))", ["(TOP (S (NN a)))"]),
        ("(NP (NP (NN a)))", ["(NP (NP (NN a)))"]),
        ("(NP (NN a b))", ["(NP (NN a) (NN b))"]),
        # Found by fuzzing: such a tree was written as two trees.
        ("(NN a b)", ["(TOP (NN a) (NN b))"]),
        ("(ADVP|PRT-CLR (PRP$-1 a) (= =) (- -))", ["(ADVP|PRT (PRP$ a) (= =) (- -))"]),
        ("(S (-NONE- *))(X (NN b))", ["(X (NN b))"]),
        (
            "(S(NN a))(S\n(NN\nb))\n\n(S(NN c))",
            ["(S (NN a))", "(S (NN b))", "(S (NN c))"],
        ),
        (
            "(S-1 (NN-2 a\u00a0b) (NP|X=3 (CD 1\u2028)))",
            ["(S (NN a\u00a0b) (NP|X (CD 1\u2028)))"],
        ),
        ("\ufeff(NN a)\r\n", ["(NN a)"]),
        ("", []),
        (" \n\t\n", []),
    ],
)
def test_read_trees_normalizes_trees(tmp_path, text, expected):
    trees = [str(tree) for _, tree in read(tmp_path, text)]
    assert trees == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "(NN a)\n(S (NN b)",
            r"a\.trees:2: the tree that begins on this line needs 1 more",
        ),
        ("(NN a))", r"a\.trees:1: unmatched \"\)\""),
        ("(NN a)\n\nb (NN c)", r"a\.trees:3: 'b' is outside all"),
        ("(S (NN a)\nb)", r"a\.trees:2: 'b' has no tag"),
        ("(NN a (NN b))", r"\"\(\" follows the word 'a' inside its bracket"),
        ("()", "an empty bracket"),
        ("(S (NP) (NN a))", "an empty bracket"),
        ("(S ((NN a)))", "has no label"),
        ("(NN \xff)".encode("latin-1"), r"a\.trees:1: not UTF-8"),
    ],
)
def test_read_trees_names_the_line_of_broken_trees(tmp_path, text, message):
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)


@pytest.mark.fault("F20", "an error that names the file")
def test_read_trees_names_a_truncated_or_missing_file(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(TRACES.encode() * 99)[:-20])
    with pytest.raises(DataError, match=r"a\.gz: the gzip file is truncated"):
        list(read_trees(path))
    with pytest.raises(DataError, match="no such file"):
        list(read_trees(tmp_path / "b"))


def test_read_trees_accepts_any_depth(tmp_path):
    deep = "(S " * 100_000 + "(NN a)" + ")" * 100_000
    ((_, tree),) = read(tmp_path, deep)
    assert len(tree.constituents) == 100_000
    assert parse_tree(str(tree)) == tree
    for text in ("(" * 100_000, "(S " * 100_000, ")" * 100_000):
        with pytest.raises(DataError, match=r"a\.trees:1: "):
            read(tmp_path, text)


def test_read_trees_inverts_str(tmp_path):
    trees = [random_tree(seed) for seed in range(300)]
    text = "".join(str(tree) + "\n" for tree in trees)
    found = read(tmp_path, text)
    assert [line for line, _ in found] == list(range(1, 301))
    assert [tree for _, tree in found] == trees
    # Line breaks are allowed in all whitespace.
    spread = re.sub(r"[ )]", lambda match: match[0] + "\n", text)
    assert [tree for _, tree in read(tmp_path, spread)] == trees


def test_split_words_escapes_brackets():
    assert split_words(" The (\tgene)s \u00a0 ") == (
        "The",
        "-LRB-",
        "gene-RRB-s",
        "\u00a0",
    )
    assert split_words(" \t") == ()


def test_read_trees_matches_bracket_counts_on_craft(data_dir):
    """Compares all trees of a corpus with a separate count of brackets."""
    path = data_dir / "craft" / "dev.trees.gz"
    if not path.is_file():
        pytest.skip(f"no {path}")
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    trees = [tree for _, tree in read_trees(path)]
    assert len(trees) == len(lines) == 3_471
    for line, tree in zip(lines, trees, strict=True):
        # In four places of this file, one tag has two words.
        line = re.sub(r"\((\S+) ([^()\s]+) ([^()\s]+)\)", r"(\1 \2) (\1 \3)", line)
        leaves = re.findall(r"\((\S+) ([^()\s]+)\)", line)
        leaves = [(tag, word) for tag, word in leaves if tag != "-NONE-"]
        assert list(zip(tree.tags, tree.words, strict=True)) == leaves
        # Removing traces and then empty brackets leaves the constituents.
        line = re.sub(r"\(-NONE- [^()\s]+\)", "", line)
        while re.search(r"\([^()\s]+\s*\)", line):
            line = re.sub(r"\([^()\s]+\s*\)", "", line)
        labels = re.findall(r"\(([^()\s]+)(?=\s*\()", line)
        labels = [re.split("[-=]", label)[0] for label in labels]
        found = [label for label, _, _ in tree.constituents]
        assert found == labels or found == ["TOP", *labels]
