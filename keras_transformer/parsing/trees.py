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
_BRACKETS = str.maketrans({"(": "-LRB-", ")": "-RRB-"})


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
    pieces = (
        (number, piece)
        for number, line in enumerate(read_lines(path), start=1)
        for piece in _PIECE.findall(line)
    )
    yield from _parse(pieces, path)


def parse_tree(text: str) -> Tree:
    """Parses a text that contains one tree.

    Raises:
        DataError: If the text is not exactly one tree with words.
    """
    pieces = ((1, piece) for piece in _PIECE.findall(text))
    trees = [tree for _, tree in _parse(pieces, "not a tree")]
    if len(trees) != 1:
        raise DataError("not a tree: it must be exactly one tree, with a word.")
    return trees[0]


def _parse(pieces, name):
    """Yields (first line, tree), given (line, bracket or label or word)."""
    builder = _Builder()
    for number, piece in pieces:
        if builder.depth == 0:
            builder, first_line = _Builder(), number
        try:
            builder.add(piece)
        except ValueError as error:
            raise DataError(f"{name}:{number}: {error}.") from None
        tree = builder.tree() if builder.depth == 0 else None
        if tree is not None:
            yield first_line, tree
    if builder.depth:
        raise DataError(
            f"{name}:{first_line}: the tree that begins on this line needs "
            f'{builder.depth} more ")".'
        )


def split_words(line: str) -> tuple[str, ...]:
    """Splits a line at ASCII whitespace, and replaces parentheses as in treebanks.

    They become ``-LRB-`` and ``-RRB-``.
    """
    return tuple(word.translate(_BRACKETS) for word in _WORD.findall(line))


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

    def add(self, piece: str) -> None:
        """Adds the next piece. Raises `ValueError` if it is invalid."""
        if piece == "(":
            self._open()
        elif piece == ")":
            self._close()
        elif self.depth == 0:
            raise ValueError(f"{_quote(piece)} is outside all brackets")
        elif self._is_new and self._label is None:
            self._label = piece
        elif self._label is None:
            raise ValueError(f"{_quote(piece)} has no tag")
        else:
            self._tagged.append(piece)

    def _open(self):
        if self._tagged:
            word = _quote(self._tagged[-1])
            raise ValueError(f'"(" follows the word {word} inside its bracket')
        if self._is_new:
            # A bracket that contains another bracket is a constituent.
            if self._label is None and self.depth > 1:
                raise ValueError("a bracket inside a tree has no label")
            self._is_outer_unlabeled |= self._label is None
            self._stack.append(len(self._spans))
            label = ROOT_LABEL if self._label is None else base_label(self._label)
            self._spans.append([label, len(self._words), None])
        self.depth += 1
        self._is_new, self._label = True, None

    def _close(self):
        if self.depth == 0:
            raise ValueError('unmatched ")"')
        if not self._is_new:
            self._spans[self._stack.pop()][2] = len(self._words)
        elif not self._tagged:
            raise ValueError("an empty bracket")
        elif self._label != TRACE_TAG:
            self._words += self._tagged
            self._tags += [base_label(self._label)] * len(self._tagged)
        self._tagged = []
        self._is_new, self._label = False, None
        self.depth -= 1

    def tree(self) -> Tree | None:
        """Returns the finished tree, or `None` if it has no word."""
        spans = [tuple(span) for span in self._spans if span[1] < span[2]]
        if not self._words:
            return None
        # Whether the first span has one child: a word, or an equal span.
        has_one_child = len(self._words) == 1 or (
            len(spans) > 1 and spans[1][1:] == spans[0][1:]
        )
        if self._is_outer_unlabeled and has_one_child:
            spans = spans[1:]
        if not spans and len(self._words) > 1:
            # Several words under one tag need a root.
            spans = [(ROOT_LABEL, 0, len(self._words))]
        return Tree(tuple(self._words), tuple(self._tags), tuple(spans))


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
