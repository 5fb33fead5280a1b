"""Constituency trees, read from brackets in the style of the Penn Treebank.

A tree is kept flat: its words, their tags, and its constituents as spans in depth-first
order. Nothing here is recursive, however deep a tree is. No TensorFlow.
"""

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Iterable
from collections.abc import Iterator

from keras_transformer.errors import DataError
from keras_transformer.pipelines.lines import read_lines

ROOT_LABEL = "TOP"
TRACE_TAG = "-NONE-"
# ASCII white space only: a no-break space may be part of a word.
_PIECE = re.compile(r"[()]|[^() \t\n\v\f\r]+")
_WORD = re.compile(r"[^ \t\n\v\f\r]+")
_FUNCTION = re.compile(r"[-=].*")
_BRACKETS = {"(": "-LRB-", ")": "-RRB-"}


@dataclasses.dataclass(frozen=True)
class Tree:
    """A sentence's constituents.

    Attributes:
        words: tuple of str, at least one.
        tags: tuple of str, each word's part of speech.
        constituents: tuple of (label, start, end), depth-first, the outer of two equal
            spans first: words `start` to `end - 1`, at least one. Tags are not among
            them.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    constituents: tuple[tuple[str, int, int], ...]

    def __str__(self):
        """The tree in brackets, on one line, as `read_trees` reads it."""
        parts = []
        for kind, value in events(self):
            if kind == "word":
                parts.append(f" ({self.tags[value]} {self.words[value]})")
            else:
                parts.append(f" ({value}" if kind == "open" else ")")
        return "".join(parts)[1:]


def events(tree: Tree) -> Iterator[tuple[str, str | int]]:
    """Walk through a tree depth-first.

    Yields:
        ("open", label) and ("close", label) of each constituent, ("word", index) of
        each word, in the order in which one writes them.
    """
    open_ = []
    following = 0
    for word in range(len(tree.words)):
        while (
            following < len(tree.constituents)
            and tree.constituents[following][1] == word
        ):
            label, _, end = tree.constituents[following]
            open_.append((label, end))
            following += 1
            yield "open", label
        yield "word", word
        while open_ and open_[-1][1] == word + 1:
            yield "close", open_.pop()[0]


def read_trees(path: str | os.PathLike) -> Iterator[tuple[int, Tree]]:
    """Read the trees of a file, plain or ``.gz``.

    A tree may take a part of a line, one, or several. Function tags and indices are
    cut off labels (``NP-SBJ-1``: ``NP``). Traces (``-NONE-``) and what they leave empty
    are taken out. An outer bracket without a label is taken off; if it holds more than
    one child it becomes ``TOP``. A tree without any word is left out. Each of several
    words under one tag (CRAFT's dev file has four such tags) has that tag.

    Args:
        path: the file.

    Yields:
        The line on which the tree begins, counted from 1, and the tree.

    Raises:
        DataError: the file cannot be read, or brackets or labels are wrong, with file
            and line.
    """
    builder = None
    for number, line in enumerate(read_lines(path), start=1):
        for piece in _PIECE.findall(line):
            if builder is None:
                if piece != "(":
                    problem = (
                        'a ")" that closes nothing'
                        if piece == ")"
                        else f"{_shown(piece)} stands outside of all brackets"
                    )
                    raise DataError(f"{path}:{number}: {problem}.")
                builder = _Builder()
                first_line = number
            problem = builder.add(piece)
            if problem:
                raise DataError(f"{path}:{number}: {problem}.")
            if builder.depth == 0:
                tree = builder.tree()
                if tree is not None:
                    yield first_line, tree
                builder = None
    if builder is not None:
        raise DataError(
            f"{path}:{first_line}: {builder.depth} bracket(s) of the tree that begins "
            "here are never closed."
        )


def parse_tree(text: str) -> Tree:
    """Read one tree from a text.

    Raises:
        DataError: there is not exactly one tree with words.
    """
    builder = _Builder()
    for piece in _PIECE.findall(text):
        problem = builder.add(piece)
        if problem:
            raise DataError(f"not a tree: {problem}.")
    tree = builder.tree() if builder.depth == 0 else None
    if tree is None:
        raise DataError("not a tree: brackets are missing, or there is no word.")
    return tree


def escaped(word: str) -> str:
    """A word as trees hold it: round brackets become ``-LRB-`` and ``-RRB-``."""
    for bracket, name in _BRACKETS.items():
        word = word.replace(bracket, name)
    return word


def words_of(line: str) -> tuple[str, ...]:
    """The words of a line, which ASCII white space separates, as trees hold them."""
    return tuple(map(escaped, _WORD.findall(line)))


class _Builder:
    """Builds a tree from its pieces: brackets, labels and words."""

    def __init__(self):
        self.depth = 0
        self._label = None  # of the bracket just opened, while nothing else is in it
        self._tagged = []  # the words in it, if it is a tag
        self._is_new = False
        self._stack = []  # index of each open constituent
        self._spans = []
        self._words = []
        self._tags = []
        self._empty_outer = False
        self._finished = False

    def add(self, piece: str) -> str | None:
        """Take the next piece; say what is wrong with it, if anything."""
        if self._finished:
            return "text after the tree"
        if piece == "(":
            return self._open()
        if piece == ")":
            return self._close()
        if self.depth == 0:
            return f"{_shown(piece)} stands outside of all brackets"
        if self._is_new and self._label is None:
            self._label = piece
            return None
        if self._label is None:
            return f"{_shown(piece)} stands beside a bracket"
        self._tagged.append(piece)
        return None

    def _open(self):
        if self._tagged:
            return f"a bracket beside the word {_shown(self._tagged[-1])}"
        if self._is_new:
            # What is open has turned out to be a constituent.
            if self._label is None and self.depth > 1:
                return "a bracket inside a tree has no label"
            self._empty_outer |= self._label is None
            self._stack.append(len(self._spans))
            label = ROOT_LABEL if self._label is None else base_label(self._label)
            self._spans.append([label, len(self._words), None])
        self.depth += 1
        self._is_new, self._label = True, None
        return None

    def _close(self):
        if self.depth == 0:
            return 'a ")" that closes nothing'
        if self._is_new:
            if not self._tagged:
                return "a bracket with nothing in it"
            if self._label != TRACE_TAG:
                self._words += self._tagged
                self._tags += [base_label(self._label)] * len(self._tagged)
            self._tagged = []
        else:
            self._spans[self._stack.pop()][2] = len(self._words)
        self._is_new, self._label = False, None
        self.depth -= 1
        self._finished = self.depth == 0
        return None

    def tree(self) -> Tree | None:
        """The finished tree; None if it has no word."""
        spans = [tuple(span) for span in self._spans if span[1] < span[2]]
        if not self._words:
            return None
        if self._empty_outer and _has_one_child(spans, len(self._words)):
            spans = spans[1:]
        if not spans and len(self._words) > 1:
            # Several words under one tag, and nothing around them.
            spans = [(ROOT_LABEL, 0, len(self._words))]
        return Tree(tuple(self._words), tuple(self._tags), tuple(spans))


def _has_one_child(spans, num_words) -> bool:
    """Whether the first span's only child is a word, or has the same span."""
    return num_words == 1 or (len(spans) > 1 and spans[1][1:] == spans[0][1:])


def base_label(label: str) -> str:
    """A label without function tags and indices; ``-LRB-`` and the like stay."""
    return label if label[0] in "-=" else _FUNCTION.sub("", label)


def label_counts(trees: Iterable[Tree]) -> tuple[Counter, Counter]:
    """How often each label of a constituent and each tag occurs."""
    labels, tags = Counter(), Counter()
    for tree in trees:
        labels.update(label for label, _, _ in tree.constituents)
        tags.update(tree.tags)
    return labels, tags


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
