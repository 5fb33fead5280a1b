"""Compares simple parsers with a trained model by bracketing F1.

    nice -n 19 python benchmarks/parsing_baselines.py train.trees.gz dev.trees.gz \\
        --model Transformer=runs/craft/dev.trees

The right-branching parser opens a constituent at every word, up to the sentence's end.
Its labels are the most frequent ones of the training trees, and final punctuation is a
child of the root. The PCFG is nltk's grammar of the training trees, with binary rules
(one sibling of horizontal context). The PCFG's terminals are tags, and its input is
the gold tags. nltk's Viterbi parser is slow, so it parses a sample, with a time limit
per sentence. If it finds no tree, the right-branching tree is used. `--model` scores
trees that `keras-transformer evaluate --metric f1 --output` wrote. With `--add`, the
script scores only the trees of `--model` and adds them to existing results.
"""

import argparse
import json
import pathlib
import time
from collections import Counter

import machine
import nltk
import report

from keras_transformer.parsing import bracketing_score
from keras_transformer.parsing.trees import Tree, label_counts, parse_tree, read_trees

# Tags of final punctuation.
FINAL = {".", ":", "''"}
# Maximum number of words of a short sentence.
SHORT = 40


def load_trees(path):
    return [tree for _, tree in read_trees(path)]


def right_branching(tree, root, label):
    """Returns the right-branching tree over the words of `tree`.

    Args:
        tree: Tree whose words and final punctuation are used.
        root: Label of the root.
        label: Label of all other constituents.
    """
    end = len(tree.words)
    while end > 1 and tree.tags[end - 1] in FINAL:
        end -= 1
    inner = [(label, start, end) for start in range(1, end - 1)]
    return Tree(tree.words, tree.tags, ((root, 0, len(tree.words)), *inner))


class Pcfg:
    """A treebank grammar over tags, with a Viterbi parser.

    Args:
        trees: Training trees.
        min_count: Rules that occur less often are omitted, except lexical rules.
        seconds: Time limit per sentence.

    Attributes:
        without_parse: Number of sentences for which the grammar has no tree.
    """

    def __init__(self, trees, min_count, seconds):
        counts = Counter()
        for tree in trees:
            binary = nltk.Tree.fromstring(str(_tagged("TOP", tree)))
            nltk.chomsky_normal_form(binary, horzMarkov=1)
            counts.update(binary.productions())
        kept = [
            rule
            for rule, count in counts.items()
            if count >= min_count or rule.is_lexical()
            for _ in range(count)
        ]
        self.grammar = nltk.induce_pcfg(nltk.Nonterminal("TOP"), kept)
        self.parser = nltk.ViterbiParser(self.grammar, max_time=seconds)
        self.without_parse = 0

    def parse(self, tree):
        """Returns the most probable tree, or `None` if none was found in time."""
        try:
            found = next(iter(self.parser.parse(tree.tags)), None)
        except TimeoutError:
            return None
        except ValueError:  # a tag that the grammar lacks
            found = None
        if found is None:
            self.without_parse += 1
            return None
        found.un_chomsky_normal_form(expandUnary=False)
        over_tags = parse_tree(found.pformat(margin=10**9))
        return Tree(tree.words, tree.tags, over_tags.constituents)


def _tagged(root, tree):
    """Returns the tree under a root, with its tags as words."""
    return Tree(tree.tags, tree.tags, ((root, 0, len(tree.words)), *tree.constituents))


def score_row(name, sentences, references, hypotheses):
    row = {"parser": name, "sentences": sentences}
    for kind, limit in (("all", None), ("short", SHORT)):
        score = bracketing_score(references, hypotheses, limit)
        row[kind] = {
            "sentences": score.sentences,
            "f1": score.f1,
            "recall": score.recall,
            "precision": score.precision,
            "complete_match": score.complete_match,
        }
    return row


def sample_of(references, max_words, size):
    """Returns indices of `size` evenly spaced sentences of 2 to `max_words` words."""
    places = [
        place
        for place, tree in enumerate(references)
        if 2 <= len(tree.words) <= max_words
    ]
    return [places[number * len(places) // size] for number in range(size)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--output", default=report.RESULTS)
    parser.add_argument(
        "--name",
        type=report.result_name,
        default="parsing_baselines",
        help="result files, a name that begins with parsing_baselines",
    )
    parser.add_argument("--sample", type=int, default=50, help="sentences for the PCFG")
    parser.add_argument("--max-words", type=int, default=10, help="words per sentence")
    parser.add_argument("--min-count", type=int, default=3, help="omit rarer rules")
    parser.add_argument(
        "--seconds", type=float, default=60, help="time limit per sentence"
    )
    parser.add_argument("--model", action="append", default=[], metavar="NAME=TREES")
    parser.add_argument(
        "--add", action="store_true", help="add models to existing results"
    )
    arguments = parser.parse_args()
    models = dict(one.split("=", 1) for one in arguments.model)
    models = {name: load_trees(path) for name, path in models.items()}
    if arguments.add:
        add(models, load_trees(arguments.test), arguments)
        return
    train, test = load_trees(arguments.train), load_trees(arguments.test)
    labels, _ = label_counts(train)
    roots = Counter(tree.constituents[0][0] for tree in train if tree.constituents)
    root, label = roots.most_common(1)[0][0], labels.most_common(1)[0][0]
    branching = [right_branching(tree, root, label) for tree in test]
    trees_by_parser = {f"right-branching, {root} and {label}": branching, **models}
    rows = [
        score_row(name, "all", test, trees) for name, trees in trees_by_parser.items()
    ]

    places = sample_of(test, arguments.max_words, arguments.sample)
    references = [test[place] for place in places]
    started = time.monotonic()
    pcfg = Pcfg(train, arguments.min_count, arguments.seconds)
    found = [pcfg.parse(tree) for tree in references]
    seconds = time.monotonic() - started
    parsed = sum(tree is not None for tree in found)
    filled = [
        tree or branching[place] for tree, place in zip(found, places, strict=True)
    ]
    sample_trees = {
        name: [trees[i] for i in places] for name, trees in trees_by_parser.items()
    }
    rule_count = len(pcfg.grammar.productions())
    sample_trees["unlexicalized PCFG, gold tags"] = filled
    rows += [
        score_row(name, "sample", references, trees)
        for name, trees in sample_trees.items()
    ]
    result = {
        "machine": machine.description(),
        "versions": report.versions() | {"nltk": nltk.__version__},
        "train_trees": len(train),
        "pcfg": {
            "rules": rule_count,
            "min_count": arguments.min_count,
            "parsed": parsed,
            "without_parse": pcfg.without_parse,
            "sample": len(places),
            "max_words": arguments.max_words,
            "seconds_limit": arguments.seconds,
            "seconds": seconds,
        },
        "rows": rows,
    }
    report.write(arguments.output, arguments.name, result)


def add(models, test, arguments):
    """Adds models to existing results, replacing older rows."""
    path = pathlib.Path(arguments.output) / f"{arguments.name}.json"
    result = json.loads(path.read_text(encoding="utf-8"))
    pcfg = result["pcfg"]
    places = sample_of(test, pcfg["max_words"], pcfg["sample"])
    rows = [row for row in result["rows"] if row["parser"] not in models]
    rows += [score_row(name, "all", test, trees) for name, trees in models.items()]
    rows += [
        score_row(name, "sample", [test[i] for i in places], [trees[i] for i in places])
        for name, trees in models.items()
    ]
    # Rows for all sentences come first. The sort keeps the order within both groups.
    result["rows"] = sorted(rows, key=lambda row: row["sentences"] != "all")
    report.write(arguments.output, arguments.name, result)


if __name__ == "__main__":
    main()
