"""What simple parsers get on a treebank, beside a trained model: bracketing F1.

    nice -n 19 python benchmarks/parsing_baselines.py train.trees.gz dev.trees.gz \
        --model Transformer=runs/craft/dev.trees

Right-branching: every word opens a constituent to the sentence's end, labelled as most
constituents of the training trees are; the root is labelled as most roots are, and
final punctuation hangs on it. PCFG: nltk's grammar of the training trees, without
words, its rules made binary (one sibling of horizontal context), and nltk's Viterbi
parser on the right tags. That is slow: it parses sentences of a sample, each within a
time limit; where it finds nothing, its tree is the right-branching one. `--model` adds
trees that `keras-transformer evaluate --metric f1 --output` wrote; with `--add` to the
results that are there, without parsing anew.
"""

import argparse
import json
import pathlib
import time
from collections import Counter

import machine
import nltk
import report

from keras_transformer.evaluation import bracketing_score
from keras_transformer.parsing.trees import Tree
from keras_transformer.parsing.trees import label_counts
from keras_transformer.parsing.trees import parse_tree
from keras_transformer.parsing.trees import read_trees

FINAL = {".", ":", "''"}
SHORT = 40
RESULTS = pathlib.Path(__file__).resolve().parent / "results"


def trees_of(path):
    return [tree for _, tree in read_trees(path)]


def right_branching(tree, root, label):
    """The tree of a sentence in which only the tags of its end are looked at."""
    end = len(tree.words)
    while end > 1 and tree.tags[end - 1] in FINAL:
        end -= 1
    inner = [(label, start, end) for start in range(1, end - 1)]
    return Tree(tree.words, tree.tags, ((root, 0, len(tree.words)), *inner))


class Pcfg:
    """A treebank grammar over tags, and its most probable tree."""

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
        """The tree, or None if it was not found in time."""
        try:
            found = next(iter(self.parser.parse(tree.tags)), None)
        except TimeoutError:
            return None
        except ValueError:  # a tag that is not in the grammar
            found = None
        if found is None:
            self.without_parse += 1
            return None
        found.un_chomsky_normal_form(expandUnary=False)
        words = parse_tree(found.pformat(margin=10**9))
        return Tree(tree.words, tree.tags, words.constituents)


def _tagged(root, tree):
    """The tree under a root, its tags as words."""
    return Tree(tree.tags, tree.tags, ((root, 0, len(tree.words)), *tree.constituents))


def figures(name, sentences, references, hypotheses):
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
    """`size` of the sentences of 2 to `max_words` words, at equal distances."""
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
    parser.add_argument("--output", default=RESULTS)
    parser.add_argument("--name", default="parsing_baselines")
    parser.add_argument("--sample", type=int, default=50)
    parser.add_argument("--max-words", type=int, default=10)
    parser.add_argument("--min-count", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60, help="for each sentence")
    parser.add_argument("--model", action="append", default=[], metavar="NAME=TREES")
    parser.add_argument("--add", action="store_true")
    arguments = parser.parse_args()
    models = dict(one.split("=", 1) for one in arguments.model)
    models = {name: trees_of(path) for name, path in models.items()}
    if arguments.add:
        add(models, trees_of(arguments.test), arguments)
        return
    train, test = trees_of(arguments.train), trees_of(arguments.test)
    labels, _ = label_counts(train)
    roots = Counter(tree.constituents[0][0] for tree in train if tree.constituents)
    root, label = roots.most_common(1)[0][0], labels.most_common(1)[0][0]
    branching = [right_branching(tree, root, label) for tree in test]
    whole = {f"right-branching, {root} and {label}": branching, **models}
    rows = [figures(name, "all", test, trees) for name, trees in whole.items()]

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
    of_sample = {name: [trees[i] for i in places] for name, trees in whole.items()}
    rule_count = len(pcfg.grammar.productions())
    of_sample["unlexicalised PCFG, right tags"] = filled
    rows += [
        figures(name, "sample", references, trees) for name, trees in of_sample.items()
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
    report.write(arguments.output, arguments.name, result, text_of(result))


def add(models, test, arguments):
    """Puts rows of models into the results that are there, in place of older ones."""
    path = pathlib.Path(arguments.output) / f"{arguments.name}.json"
    result = json.loads(path.read_text(encoding="utf-8"))
    pcfg = result["pcfg"]
    places = sample_of(test, pcfg["max_words"], pcfg["sample"])
    rows = [row for row in result["rows"] if row["parser"] not in models]
    rows += [figures(name, "all", test, trees) for name, trees in models.items()]
    rows += [
        figures(name, "sample", [test[i] for i in places], [trees[i] for i in places])
        for name, trees in models.items()
    ]
    # A stable sort: whole texts first.
    result["rows"] = sorted(rows, key=lambda row: row["sentences"] != "all")
    report.write(arguments.output, arguments.name, result, text_of(result))


def text_of(result):
    pcfg = result["pcfg"]
    head = ("parser", "sentences", "F1", "recall", "precision", "complete match")
    head = (*head, f"F1, at most {SHORT} words")
    lines = []
    for row in result["rows"]:
        score = row["all"]
        which = f"{row['sentences']}: {score['sentences']:,}"
        cells = [score[key] for key in ("f1", "recall", "precision", "complete_match")]
        cells += [row["short"]["f1"]]
        lines.append([row["parser"], which, *(f"{cell:.2f}" for cell in cells)])
    limit = pcfg["seconds_limit"]
    late = pcfg["sample"] - pcfg["parsed"] - pcfg["without_parse"]
    return (
        "# Bracketing F1 of simple parsers\n\n"
        + report.table(head, lines)
        + f"\nLabelled, by COLLINS.prm's rules; {result['train_trees']:,} training "
        f"trees. The sample: {pcfg['sample']} sentences of 2 to {pcfg['max_words']} "
        f"words, at equal distances. The PCFG has {pcfg['rules']:,} rules, those seen "
        f"fewer than {pcfg['min_count']} times left out, and {limit:.0f} s for each "
        f"sentence ({pcfg['seconds']:.0f} s in all, training included): {late} took "
        f"longer, {pcfg['without_parse']} are not of its language; they have the "
        "right-branching tree.\n"
    )


if __name__ == "__main__":
    main()
