"""`train`, `evaluate`, and `parse` with trees of a toy grammar, and output repairs.

A parser is a translation model from words to the symbols of a linearized tree, such as
"(S (NN) )S". Output that is no valid tree of the words is repaired.
"""

import json
import random
import shutil
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from commands import run_command

from keras_transformer.cli.evaluate import score_parses
from keras_transformer.opening import ModelError, open_model
from keras_transformer.parsing.parser import parse_sentences, repair_report
from keras_transformer.parsing.trees import parse_tree, read_trees
from keras_transformer.recipes import load_recipe

pytestmark = pytest.mark.usefixtures("models_stay_open")
# All tests use them, so that the search is traced once.
PARTS = ("--parallel-parts", "2")
NOUNS, VERBS = ["dog", "cat", "gene"], ["sees", "eats"]


def toy_trees(count):
    """Returns distinct trees of a grammar in which the words determine the tree."""
    draw = random.Random(3)

    def noun_phrase(deep):
        text = f"(NP (DT the) (NN {draw.choice(NOUNS)}))"
        if deep:
            return f"(NP {text} (PP (IN near) {noun_phrase(False)}))"
        return text

    trees = set()
    while len(trees) < count:
        subject = noun_phrase(draw.random() < 0.5)
        rest = noun_phrase(draw.random() < 0.5) if draw.random() < 0.5 else ""
        verb = f"(VP (VBZ {draw.choice(VERBS)})" + (f" {rest})" if rest else ")")
        trees.add(f"(S {subject} {verb} (. .))")
    return sorted(trees)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parsing")
    (folder / "toy.trees").write_text("\n".join(toy_trees(24)) + "\n")
    return folder


@pytest.fixture(scope="module")
def trained(folder):
    """Folder of a run that has memorized all toy trees."""
    settings = [
        f"data.train.trees={folder / 'toy.trees'}",
        f"data.validation.trees={folder / 'toy.trees'}",
        "data.max_length=60",
        "data.linearization=tags",
        "tokenizer={kind: bpe, vocabulary_size: 320}",  # whole words need few steps
        "model={size: tiny, num_layers: 2, d_model: 48, d_ff: 96, num_heads: 2, "
        "key_dim: 24, value_dim: 24, dropout: 0.0, normalization: pre}",
        "training.steps=120",
        "training.batch_tokens=400",
        "training.warmup_steps=30",
        "training.learning_rate=0.006",
        "training.cooldown_steps=40",
        "training.checkpoint_steps=20",
        "training.average_checkpoints=2",
        "training.guided_alignment_weight=0.2",
        "training.mixed_precision=null",
        "training.validation_steps=60",
        "training.validation_sentences=10",
        "training.validation_beam_size=4",  # the final validation traces no new search
        "decoding={beam_size: 4, length_penalty: 0.3, extra_length: 20}",
    ]
    overrides = [part for one in settings for part in ("--set", one)]
    run_command(
        "train", "craft_parsing", "--output", folder / "run", *overrides, code=0
    )
    return folder / "run"


def test_parse_prints_the_trees_of_a_trained_model(
    trained, folder, tmp_path, parallel_counts
):
    """`evaluate` and `parse` reproduce the training trees exactly."""
    toy = folder / "toy.trees"
    output = tmp_path / "out.trees"
    result = run_command(
        *["evaluate", trained, "--metric", "f1", "--reference", toy, "--json"],
        *["--output", output, *PARTS],
        code=0,
    )
    assert parallel_counts == [2]
    report = json.loads(result.stdout)
    # `short` covers the sentences of at most 40 words, which here are all.
    everything, short = report["results"]
    assert (everything["f1"], everything["complete_match"]) == (100, 100)
    assert everything["tagging_accuracy"] == 100
    assert short["sentences"] == everything["sentences"] == report["sentences"] == 24
    assert report["repairs"] == {"trees": 0, "kinds": {}}
    assert output.read_text() == toy.read_text()
    assert "trees: 24, from a lower-ranked output: 0, repaired: 0" in result.stderr

    lines = [" ".join(tree.words) for _, tree in read_trees(toy)]
    given = "\n".join([*lines[:3], "", lines[3]])
    result = run_command("parse", trained, *PARTS, stdin=given, code=0)
    assert parallel_counts == [2, 2]
    expected = toy.read_text().splitlines()[:4]
    assert result.stdout.split("\n") == [*expected[:3], "", expected[3], ""]
    assert "trees: 4, " in result.stderr

    # The model predicts only the symbols of trees, whose ids precede those of the byte
    # tokens and of the words' subwords.
    transformer = open_model(trained).model
    pieces = open_model(trained).tokenizer.pieces()
    assert transformer.output_size == pieces.index("<0x00>") < len(pieces)
    assert all(piece[1:2] in "()" for piece in pieces[4 : transformer.output_size])

    best = [
        json.loads(line)["f1"]
        for line in (trained / "metrics.jsonl").read_text("utf-8").splitlines()
        if json.loads(line)["split"] == "validation"
    ]
    assert len(best) == 2
    assert best[-1] > 90


def test_evaluate_compares_source_and_trees(trained, folder, tmp_path):
    toy, source = folder / "toy.trees", tmp_path / "source"
    arguments = ["evaluate", trained, *PARTS, "--metric", "f1", "--reference", toy]
    lines = [" ".join(tree.words) for _, tree in read_trees(toy)]
    for given, code, message in (
        (lines, 0, "sentences in"),
        ([*lines[:5], "other words", *lines[6:]], 2, f"{source}:6: must have the same"),
        (lines[:1], 2, f"must have one line per tree of {toy}. Received: 1 lines and "),
    ):
        source.write_text("\n".join(given))
        result = run_command(*arguments, "--source", source)
        assert result.exit_code == code and message in result.stderr
        assert result.stdout.count("\n") == (2 if code == 0 else 0)


def test_parse_returns_a_tree_for_any_words(trained, tmp_path):
    lines = ["the", "(a) b\u00a0c )(", "dog " * 70, "\t", "é \u2028 x", "gene eats ."]
    path = tmp_path / "in"
    path.write_text("\n".join(lines) + "\n")
    output = tmp_path / "out"
    result = run_command(
        "parse", trained, *PARTS, "--input", path, "--output", output, code=0
    )
    assert "line 3: " in result.stderr  # longer than `data.max_length`
    trees = output.read_text().split("\n")
    assert len(trees) == 7 and trees[3] == trees[6] == ""
    words = [parse_tree(tree).words for tree in trees if tree]
    assert words == [
        ("the",),
        ("-LRB-a-RRB-", "b\u00a0c", "-RRB--LRB-"),
        ("dog",) * 70,
        ("é", "\u2028", "x"),
        ("gene", "eats", "."),
    ]


def test_parse_splits_words_of_raw_text(trained):
    pytest.importorskip("nltk", reason="nltk, of the extra [dev], is missing")
    raw = "The gene (near the cat) can't eat."
    result = run_command("parse", trained, *PARTS, "--split-words", stdin=raw)
    (tree,) = result.stdout.splitlines()
    expected = "The gene -LRB- near the cat -RRB- ca n't eat ."
    assert " ".join(parse_tree(tree).words) == expected


def test_train_rejects_new_symbols_for_an_old_vocabulary(trained, folder, tmp_path):
    (tmp_path / "new.trees").write_text("(S (NP (NN dog)))\n(S (QP (CD two)))\n")
    shutil.copytree(trained, tmp_path / "run")
    result = run_command(
        *["train", tmp_path / "run" / "config.yaml", "--output", tmp_path / "run"],
        *["--allow-changes", "--set", f"data.train.trees={tmp_path / 'new.trees'}"],
        *["--set", "training.steps=200"],
        code=2,
    )
    assert (
        "new.trees:2: the vocabulary lacks the symbol of a label, a tag or brackets "
    ) in result.stderr


def test_parsing_errors_are_one_line(trained, folder, tmp_path, monkeypatch):
    monkeypatch.delenv("KERAS_TRANSFORMER_DATA", raising=False)
    (tmp_path / "broken.trees").write_text("(S (NN a))\n(S (NN b)\n")
    (tmp_path / "empty.trees").write_text("\n")
    monkeypatch.chdir(tmp_path)
    broken = "broken.trees:2: the tree that begins on this line"
    for command, message in (
        ("evaluate {run} --metric f1 --reference broken.trees", broken),
        ("evaluate {run} --metric f1 --reference empty.trees", "contains no trees"),
        ("evaluate {run} -m f1 -m bleu --reference {toy}", "f1: cannot be combined"),
        ("evaluate {run} --reference {toy}", "the text to translate as --source"),
        ("train craft_parsing -o x", "KERAS_TRANSFORMER_DATA is not set"),
        (
            "train craft_parsing -o x --set data.train.trees=broken.trees "
            "--set data.validation.trees={toy}",
            broken,
        ),
    ):
        words = command.format(run=trained, toy=folder / "toy.trees").split()
        result = run_command(*words, code=2)
        assert message in result.stderr and result.stderr.count("\n") == 1


class Output(NamedTuple):
    text: str
    score: float = 0.0


def test_score_parses_omits_short_sentences_if_there_are_none():
    words = [f"(NN w{number})" for number in range(41)]
    long, short = parse_tree(f"(S {' '.join(words)})"), parse_tree("(S (NN w))")
    for trees, lengths in (([long], [None]), ([long, short], [None, 40])):
        found = score_parses(trees, trees)
        assert [(each["max_words"], each["f1"]) for each in found] == [
            (length, 100) for length in lengths
        ]


def test_parser_uses_the_first_valid_output():
    outputs = ["(S (A)", "(S (A) (B) )S", "(X (A) (B) )X"]

    def n_best(lines):
        assert lines == ["a b", ""]
        return [[Output(text) for text in outputs], [Output("")]]

    translator = SimpleNamespace(n_best=n_best)
    found, empty = parse_sentences(translator, [("a", "b"), ()], "tags")
    assert (str(found.tree), found.rank) == ("(S (A a) (B b))", 2)
    assert not found.repairs and empty == (None, None, None)
    outputs[1:] = ["(S"]
    found, empty = parse_sentences(translator, [("a", "b"), ()], "tags")
    assert (str(found.tree), found.rank) == ("(S (A a) (XX b))", 1)
    assert repair_report([found, empty]) == (
        "trees: 1, from a lower-ranked output: 0, repaired: 1 "
        "(1 missing words, 1 missing closing brackets)"
    )


@pytest.mark.parametrize(
    ("linearization", "output", "tree", "repairs"),
    [
        (
            *("numbers", "(S (0) (2)", "(S (XX a) (XX b) (XX c))"),
            {"missing words": 1, "missing closing brackets": 1},
        ),
        ("joined", "(0) (S(A) (2) (C)", "(S (A a) (XX b) (C c))", {"missing words": 1}),
        ("joined", "(0) (S(A) (1) (NP(B) (2) (C))NP", "(S (A a) (NP (B b) (C c)))", {}),
    ],
)
def test_parser_repairs_outputs(linearization, output, tree, repairs):
    """`linearization` is that of the target (see `linearize`)."""

    def n_best(lines):
        assert lines == ["(0) a (1) b (2) c"]
        return [[Output(output)]]

    (found,) = parse_sentences(
        SimpleNamespace(n_best=n_best), [("a", "b", "c")], linearization
    )
    assert str(found.tree) == tree
    assert found.repairs == repairs


def test_parse_rejects_a_translation_model(trained, tmp_path):
    recipe = load_recipe(trained / "config.yaml")
    model = open_model(trained)
    assert model.data == recipe.data
    model.data = load_recipe("phrases").data
    with pytest.raises(
        ModelError, match=r"data\.kind: trees. Received: data\.kind: phrases"
    ):
        parse_sentences(model, [("a",)])
    model.data = None
    with pytest.raises(ModelError, match="parsing needs the recipe"):
        parse_sentences(model, [("a",)])
