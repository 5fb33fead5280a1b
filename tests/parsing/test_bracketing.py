"""Bracketing F1 by EVALB's rules, against hand counts and PYEVALB.

EVALB is the standard program for the evaluation of parsers. Its rules in COLLINS.prm
ignore punctuation and the root TOP, and treat PRT and ADVP as equal. The Python package
PYEVALB lacks these rules and compares sets of brackets. The tests therefore remove
punctuation from the trees for PYEVALB, write ADVP in place of PRT, and subtract TOP
from the counts. Pairs in which a tree has equal constituents are skipped.
"""

import random
import re

import pytest

from keras_transformer.parsing import bracketing_score
from keras_transformer.parsing.linearization import delinearize, linearize
from keras_transformer.parsing.trees import Tree, parse_tree, read_trees

GOLD = "(S (NP (DT the) (NN dog)) (VP (VBZ runs) (PRT (RP off))) (. .))"


def score(gold, guess, **options):
    return bracketing_score([parse_tree(gold)], [parse_tree(guess)], **options)


def test_bracketing_score_matches_hand_counts():
    # NP, S, and the ADVP, which counts as PRT, match. VP does not: it ends earlier.
    guess = "(S (NP (DT the) (NN dog)) (VP (VBZ runs)) (ADVP (RB off)) (. .))"
    found = score(GOLD, guess)
    assert (found.matched, found.reference, found.hypothesis) == (3, 4, 4)
    assert (found.recall, found.precision, found.f1) == (75, 75, 75)
    assert (found.complete_match, found.sentences) == (0, 1)
    assert (found.tagged, found.words) == (3, 4)
    assert found.tagging_accuracy == 75
    assert score(GOLD, GOLD).complete_match == 100


@pytest.mark.parametrize(
    ("gold", "guess"),
    [
        # Punctuation with other parents and other tags.
        ("(S (NP (NN a)) (, ,) (NP (NN b)))", "(S (NP (NN a) (NN ,)) (NP (NN b)))"),
        ("(S (`` `) (NN a) ('' ') (: ;))", "(S (NP (NN `)) (NN a) (X (X ') (X ;)))"),
        ("(TOP (S (NN a) (NN b)))", "(S (NN a) (NN b))"),
        ("(S (NN a) (PRT (NN b)))", "(S (NN a) (ADVP (NN b)))"),
        # A constituent of punctuation only.
        ("(S (NN a) (NN b) (. .))", "(S (NN a) (NN b) (X (. .)))"),
    ],
)
def test_bracketing_score_ignores_punctuation_and_root(gold, guess):
    assert score(gold, guess).complete_match == 100


def test_bracketing_score_counts_equal_constituents_separately():
    # Gold has S and two equal NPs. The hypothesis has S and one NP, which both match.
    found = score("(S (NP (NP (NN a))) (NN b))", "(S (NP (NN a)) (NN b))")
    assert (found.matched, found.reference, found.hypothesis) == (2, 3, 2)
    # Gold has S and one NP. The hypothesis has S and three equal NPs.
    found = score("(S (NP (NN a)) (NN b))", "(S (NP (NP (NP (NN a)))) (NN b))")
    assert (found.matched, found.reference, found.hypothesis) == (2, 2, 4)
    # In COLLINS.prm, the tags of hyphens and brackets are not punctuation, so X and Y
    # count as missing constituents.
    found = score("(NP (X (HYPH -)) (Y (-LRB- -LRB-)))", "(NP (HYPH -) (-LRB- -LRB-))")
    assert (found.matched, found.reference) == (1, 3)


def test_max_length_includes_punctuation():
    long = Tree(("a",) * 41, ("NN",) * 40 + (".",), (("S", 0, 41),))
    short = Tree(("a",) * 40, ("NN",) * 39 + (".",), (("S", 0, 40),))
    assert bracketing_score([long, short], [long, short]).sentences == 2
    assert bracketing_score([long, short], [long, short], 40).reference == 1


def test_bracketing_score_rejects_unpaired_trees():
    with pytest.raises(ValueError, match="must have one reference"):
        bracketing_score([parse_tree(GOLD)], [])
    with pytest.raises(ValueError, match="Sentence 1: the hypothesis must have"):
        score(GOLD, GOLD.replace("dog", "cat"))
    nothing = bracketing_score([], [])
    assert (nothing.f1, nothing.recall, nothing.complete_match) == (0, 0, 0)


def damaged(tree, draw):
    """Returns a tree with random errors like those of a model."""
    symbols = linearize(tree).split()
    for _ in range(draw.randint(0, 6)):
        place = draw.randrange(len(symbols))
        change = draw.random()
        if change < 0.4:
            del symbols[place]
        elif change < 0.7:
            symbols.insert(place, draw.choice(symbols))
        else:
            other = draw.choice(["NP", "VP", "S", "PRT", "ADVP", "TOP"])
            symbols[place] = re.sub(r"(?<=^[()])[^()]+$", other, symbols[place])
        symbols = symbols or ["(S"]
    return delinearize(" ".join(symbols), tree.words)[0]


def without_punctuation(tree, tags):
    """Returns a tree for PYEVALB, without punctuation and with ADVP in place of PRT."""
    leaves = iter(enumerate(tags))

    def leaf(match):
        number, tag = next(leaves)
        is_punctuation = tag in {",", ":", "``", "''", "."}
        return "" if is_punctuation else f"({match[1]} w{number})"

    text = re.sub(r"\(([^() ]+) [^() ]+\)", leaf, str(tree))
    while re.search(r"\([^() ]+ *\)", text):
        text = re.sub(r"\([^() ]+ *\)", "", text)
    return re.sub(r"\(PRT\b", "(ADVP", text)


def pyevalb_counts(gold, guess):
    """Returns the numbers of matched, gold and guessed brackets other than TOP.

    If a tree has equal constituents, returns `None`.
    """
    from PYEVALB import parser
    from PYEVALB.scorer import Scorer

    trees = [parser.create_from_bracket_string(text) for text in (gold, guess)]
    nodes = [list(tree.non_terminal_labels) for tree in trees]
    if any(len(set(each)) < len(each) for each in nodes):
        return None
    result = Scorer().score_trees(*trees)
    roots = [{node for node in each if node.value == "TOP"} for each in nodes]
    return (
        result.matched_brackets - len(roots[0] & roots[1]),
        result.gold_brackets - len(roots[0]),
        result.test_brackets - len(roots[1]),
    )


@pytest.mark.parametrize("damage", [False, True])
def test_bracketing_score_matches_pyevalb_on_craft(data_dir, damage):
    pytest.importorskip("PYEVALB", reason="PYEVALB, of the extra [dev], is missing")
    path = data_dir / "craft" / "dev.trees.gz"
    if not path.is_file():
        pytest.skip(f"no {path}")
    draw = random.Random(5)
    compared = skipped = 0
    for number, (_, gold) in enumerate(read_trees(path)):
        if number % 5 or not gold.constituents:
            continue
        guess = damaged(gold, draw) if damage else gold
        texts = [without_punctuation(tree, gold.tags) for tree in (gold, guess)]
        if not all(text.count("(") > 1 for text in texts):
            continue
        expected = pyevalb_counts(*texts)
        if expected is None:
            skipped += 1
            continue
        found = bracketing_score([gold], [guess])
        assert (found.matched, found.reference, found.hypothesis) == expected
        compared += 1
    assert compared > 500
    assert skipped < compared
