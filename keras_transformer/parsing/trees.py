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

    Examples:
        >>> tree = kt.parsing.Tree(("Dogs", "bark"), ("NNS", "VBP"), (("S", 0, 2),))
        >>> kt.parsing.linearize(tree)
        '(S (NNS) (VBP) )S'
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
    """Walks through a tree depth-first, in the order of the written tree.

    Yields `("open", label)` and `("close", label)` for each constituent, and `("word",
    index)` for each word.
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
    """Yields `(line_number, tree)` for each tree in a file, plain or compressed.

    A tree may span several lines, and a line may contain several trees. Each tree is
    normalized as follows:

    - Function tags and indices are removed from labels (``NP-SBJ-1`` becomes ``NP``).
    - Traces (``-NONE-``) and constituents that they leave empty are removed.
    - An outer bracket without a label is removed, or becomes ``TOP`` if it has more
      than one child.
    - A tree without words is skipped.
    - If a tag has several words, each word gets the tag. The dev file of the CRAFT
      corpus has four such tags.

    Raises:
        DataError: If the file cannot be read, or brackets or labels are wrong. The
            message names file and line.

    Examples:
        >>> import pathlib
        >>> text = "( (S (NP-SBJ (NNS Dogs)) (VP (VBP bark))) )"
        >>> size = pathlib.Path("a.mrg").write_text(text)
        >>> for number, tree in kt.parsing.read_trees("a.mrg"):
        ...     print(number, tree.words, tree.constituents)
        ...
        1 ('Dogs', 'bark') (('S', 0, 2), ('NP', 0, 1), ('VP', 1, 2))
    """
    pieces = (
        (number, piece)
        for number, line in enumerate(read_lines(path), start=1)
        for piece in _PIECE.findall(line)
    )
    yield from _parse(pieces, path)


def parse_tree(text: str) -> Tree:
    """Parses a text that contains exactly one tree.

    Returns:
        `Tree`.

    Raises:
        DataError: If the text is not exactly one tree.

    Examples:
        >>> tree = kt.parsing.parse_tree("(S (NP (DT The) (NN dog)) (VP (VBZ barks)))")
        >>> tree.words
        ('The', 'dog', 'barks')
        >>> tree.constituents
        (('S', 0, 3), ('NP', 0, 2), ('VP', 2, 3))
    """
    pieces = ((1, piece) for piece in _PIECE.findall(text))
    trees = [tree for _, tree in _parse(pieces, "not a tree")]
    if len(trees) != 1:
        raise DataError(
            f"must be exactly one tree, with at least one word. Received: {text[:40]!r}"
        )
    return trees[0]


@dataclasses.dataclass
class _Bracket:
    """An open bracket of a tree."""

    label: str | None = None
    words: list = dataclasses.field(default_factory=list)  # if the label is a tag
    # If it contains a bracket, its constituent: the label, start and end.
    span: list | None = None


def _parse(pieces, name):
    """Yields (first line, tree), given (line, bracket or label or word)."""
    stack = []
    for line, piece in pieces:
        bracket, problem = stack[-1] if stack else None, None
        if piece == "(":
            if not stack:
                first_line, words, tags, spans = line, [], [], []
            elif bracket.words:
                word = _quote(bracket.words[-1])
                problem = f'"(" follows the word {word} inside its bracket'
            elif bracket.span is None:
                if bracket.label is None and len(stack) > 1:
                    problem = "a bracket inside a tree has no label"
                label = base_label(bracket.label or ROOT_LABEL)
                bracket.span = [label, len(words), None]
                spans.append(bracket.span)
            stack.append(_Bracket())
        elif not stack:
            outside = f"{_quote(piece)} is outside all brackets"
            problem = 'unmatched ")"' if piece == ")" else outside
        elif piece == ")":
            stack.pop()
            if bracket.span is not None:
                bracket.span[2] = len(words)
            elif not bracket.words:
                problem = "an empty bracket"
            elif bracket.label != TRACE_TAG:
                words += bracket.words
                tags += [base_label(bracket.label)] * len(bracket.words)
        elif bracket.span is not None:
            problem = f"{_quote(piece)} has no tag"
        elif bracket.label is None:
            bracket.label = piece
        else:
            bracket.words.append(piece)
        if problem:
            raise DataError(f"{name}:{line}: {problem}")
        if not stack and words:
            yield first_line, _tree(words, tags, spans, bracket.label is not None)
    if stack:
        raise DataError(
            f"{name}:{first_line}: the tree that begins on this line needs "
            f'{len(stack)} more ")"'
        )


def _tree(words, tags, spans, is_labeled) -> Tree:
    """Returns a tree without empty constituents, and with a root if it needs one."""
    spans = [tuple(span) for span in spans if span[1] < span[2]]
    # Whether the first span has one child: a word, or an equal span.
    has_one_child = len(words) == 1 or (len(spans) > 1 and spans[1][1:] == spans[0][1:])
    if not is_labeled and has_one_child:
        spans = spans[1:]
    if not spans and len(words) > 1:
        # Several words under one tag need a root.
        spans = [(ROOT_LABEL, 0, len(words))]
    return Tree(tuple(words), tuple(tags), tuple(spans))


def split_words(line: str) -> tuple[str, ...]:
    """Splits a line at ASCII whitespace, and replaces parentheses as in treebanks.

    They become ``-LRB-`` and ``-RRB-``.

    Returns:
        Tuple of str, the words.

    Examples:
        >>> kt.parsing.split_words("Dogs ( big ones ) bark .")
        ('Dogs', '-LRB-', 'big', 'ones', '-RRB-', 'bark', '.')
    """
    return tuple(word.translate(_BRACKETS) for word in _WORD.findall(line))


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
