"""Constituency trees in the bracketed format of the Penn Treebank.

A tree is stored flat: its words, their tags, and its constituents as spans in
depth-first order. No function is recursive, so trees may have any depth. This module
does not import TensorFlow.
"""

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from keras_transformer.errors import DataError
from keras_transformer.pipelines.lines import read_lines

ROOT_LABEL = "TOP"
TRACE_TAG = "-NONE-"
# ASCII whitespace only, because a no-break space may be part of a word.
_PIECE = re.compile(r"[()]|[^() \t\n\v\f\r]+")
_WORD = re.compile(r"[^ \t\n\v\f\r]+")
_FUNCTION = re.compile(r"[-=].*")
_BRACKETS = {"(": "-LRB-", ")": "-RRB-"}


@dataclasses.dataclass(frozen=True)
class Tree:
    """Constituency tree of a sentence.

    Attributes:
        words: Tuple of str, at least one.
        tags: Tuple of str, each word's part of speech.
        constituents: Tuple of `(label, start, end)` for the words `start` to `end - 1`,
            in depth-first order. If two spans are equal, the outer constituent comes
            first. Tags are not included. With a single word, there may be none.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    constituents: tuple[tuple[str, int, int], ...]

    def __str__(self):
        """Returns the tree in brackets on one line, which `read_trees` can read."""
        parts = []
        for kind, value in events(self):
            if kind == "word":
                parts.append(f" ({self.tags[value]} {self.words[value]})")
            else:
                parts.append(f" ({value}" if kind == "open" else ")")
        return "".join(parts)[1:]


def events(tree: Tree) -> Iterator[tuple[str, str | int]]:
    """Walks through a tree depth-first.

    Yields:
        `("open", label)` and `("close", label)` for each constituent and
        `("word", index)` for each word, in the order of the written tree.
    """
    stack = []
    next_constituent = 0
    for word in range(len(tree.words)):
        while (
            next_constituent < len(tree.constituents)
            and tree.constituents[next_constituent][1] == word
        ):
            label, _, end = tree.constituents[next_constituent]
            stack.append((label, end))
            next_constituent += 1
            yield "open", label
        yield "word", word
        while stack and stack[-1][1] == word + 1:
            yield "close", stack.pop()[0]


def read_trees(path: str | os.PathLike) -> Iterator[tuple[int, Tree]]:
    """Reads the trees of a file, plain or compressed.

    A tree may span several lines, and a line may contain several trees. Each tree is
    normalized as follows:

    - Function tags and indices are removed from labels (``NP-SBJ-1`` becomes ``NP``).
    - Traces (``-NONE-``) and constituents that they leave empty are removed.
    - An outer bracket without a label is removed, or becomes ``TOP`` if it has more
      than one child.
    - A tree without words is skipped.
    - If a tag has several words, each word gets the tag. The dev file of the CRAFT
      corpus has four such tags.

    Args:
        path: Path of the file.

    Yields:
        The line on which the tree begins, counted from 1, and the tree.

    Raises:
        DataError: If the file cannot be read, or if brackets or labels are invalid. The
            message names file and line.
    """
    builder = None
    for number, line in enumerate(read_lines(path), start=1):
        for piece in _PIECE.findall(line):
            if builder is None:
                builder, first_line = _Builder(), number
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
            f"{path}:{first_line}: the tree that begins on this line needs "
            f'{builder.depth} more ")".'
        )


def parse_tree(text: str) -> Tree:
    """Parses a text that contains one tree.

    Raises:
        DataError: If the text is not exactly one tree with words.
    """
    builder = _Builder()
    for piece in _PIECE.findall(text):
        problem = builder.add(piece)
        if problem:
            raise DataError(f"not a tree: {problem}.")
    tree = builder.tree() if builder.depth == 0 else None
    if tree is None:
        raise DataError('not a tree: it must contain a word, and a ")" for each "(".')
    return tree


def escape_brackets(word: str) -> str:
    """Replaces parentheses with ``-LRB-`` and ``-RRB-``, as in treebanks."""
    for bracket, name in _BRACKETS.items():
        word = word.replace(bracket, name)
    return word


def split_words(line: str) -> tuple[str, ...]:
    """Splits a line at ASCII whitespace and escapes parentheses, as in treebanks."""
    return tuple(map(escape_brackets, _WORD.findall(line)))


class _Builder:
    """Builds a tree from its pieces: brackets, labels and words."""

    def __init__(self):
        self.depth = 0
        self._label = None  # label of the innermost bracket, while `_is_new`
        self._tagged = []  # words after this label, if it is a tag
        self._is_new = False  # whether the innermost bracket contains no bracket yet
        self._stack = []  # indices of the open constituents
        self._spans = []
        self._words = []
        self._tags = []
        self._is_outer_unlabeled = False  # whether the outermost bracket has no label
        self._finished = False  # whether the outermost bracket is closed

    def add(self, piece: str) -> str | None:
        """Adds the next piece. Returns a message if it is invalid, else `None`."""
        if self._finished:
            return "text after the tree"
        if piece == "(":
            return self._open()
        if piece == ")":
            return self._close()
        if self.depth == 0:
            return f"{_quote(piece)} is outside all brackets"
        if self._is_new and self._label is None:
            self._label = piece
            return None
        if self._label is None:
            return f"{_quote(piece)} has no tag"
        self._tagged.append(piece)
        return None

    def _open(self):
        if self._tagged:
            return f'"(" follows the word {_quote(self._tagged[-1])} inside its bracket'
        if self._is_new:
            # A bracket that contains another bracket is a constituent.
            if self._label is None and self.depth > 1:
                return "a bracket inside a tree has no label"
            self._is_outer_unlabeled |= self._label is None
            self._stack.append(len(self._spans))
            label = ROOT_LABEL if self._label is None else base_label(self._label)
            self._spans.append([label, len(self._words), None])
        self.depth += 1
        self._is_new, self._label = True, None
        return None

    def _close(self):
        if self.depth == 0:
            return 'unmatched ")"'
        if self._is_new:
            if not self._tagged:
                return "an empty bracket"
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
        """Returns the finished tree, or `None` if it has no word."""
        spans = [tuple(span) for span in self._spans if span[1] < span[2]]
        if not self._words:
            return None
        if self._is_outer_unlabeled and _has_one_child(spans, len(self._words)):
            spans = spans[1:]
        if not spans and len(self._words) > 1:
            # Several words under one tag need a root.
            spans = [(ROOT_LABEL, 0, len(self._words))]
        return Tree(tuple(self._words), tuple(self._tags), tuple(spans))


def _has_one_child(spans, num_words) -> bool:
    """Returns whether the first span has one child: a word, or an equal span."""
    return num_words == 1 or (len(spans) > 1 and spans[1][1:] == spans[0][1:])


def base_label(label: str) -> str:
    """Removes function tags and indices from a label, but keeps ``-LRB-``."""
    return label if label[0] in "-=" else _FUNCTION.sub("", label)


def label_counts(trees: Iterable[Tree]) -> tuple[Counter, Counter]:
    """Counts how often each constituent label and each tag occurs."""
    labels, tags = Counter(), Counter()
    for tree in trees:
        labels.update(label for label, _, _ in tree.constituents)
        tags.update(tree.tags)
    return labels, tags


def _quote(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
