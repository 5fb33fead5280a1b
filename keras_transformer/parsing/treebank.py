"""Treebank files as a source of pairs of sentences and linearized trees."""

import functools
import os
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from keras_transformer.errors import DataError
from keras_transformer.parsing.linearization import (
    NUMBERS,
    check_tags,
    collect_symbols,
    linearize,
    source_text,
)
from keras_transformer.parsing.trees import Tree, read_trees
from keras_transformer.pipelines.lines import content_hash, visible_files
from keras_transformer.pipelines.sources.base import (
    Pairs,
    Path,
    as_paths,
    locate_in_files,
)


class TreeFiles(Pairs):
    """Pairs of sentences and linearized trees, from files of bracketed trees.

    Files are plain or compressed. Iterating yields `(words, symbols)`, two strings of
    items separated by single spaces. If words are numbered, sentences start at
    different numbers, so that a model sees all numbers about equally often. If all
    sentences started at 0, high numbers would occur in long sentences only.

    Args:
        trees: Path or list of paths. A folder stands for all files in it and in its
            subfolders, sorted by name, except hidden ones.
        weights: For each path, the number of times that its trees occur per epoch. With
            0.1, every epoch samples a tenth of them. If `None`, each tree occurs once.
        linearization: Form of a word in the target (see `parsing.linearize`).

    Raises:
        DataError: If a folder contains no file, a weight is not finite and above 0, or
            the numbers of weights and paths differ. Iteration raises the same error if
            a file is missing, contains no tree, or contains an invalid tree.

    Examples:
        >>> import pathlib
        >>> text = "(S (NP (NNS Dogs)) (VP (VBP bark)))"
        >>> size = pathlib.Path("a.mrg").write_text(text)
        >>> list(kt.parsing.TreeFiles("a.mrg"))
        [('Dogs bark', '(S (NP (NNS) )NP (VP (VBP) )VP )S')]
    """

    def __init__(
        self,
        trees: Path | Sequence[Path],
        weights: Sequence[float] | None = None,
        linearization: str = "tags",
    ):
        paths = as_paths(trees)
        weights = [1.0] * len(paths) if weights is None else list(weights)
        if len(weights) != len(paths) or not paths:
            raise DataError(
                "trees must have one weight per path, and at least one path. "
                f"Received: {len(weights)} weights, {len(paths)} paths"
            )
        if not all(weight > 0 and np.isfinite(weight) for weight in weights):
            raise DataError(
                f"weights of trees must be finite and above 0. Received: {weights}"
            )
        self._files = [
            (file, weight)
            for path, weight in zip(paths, weights, strict=True)
            for file in _files(path)
        ]
        self._linearization = linearization

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for tree in self.trees():
            # A hash of the words gives a sentence the same numbers in every run.
            first = zlib.crc32(" ".join(tree.words).encode()) % NUMBERS
            yield (
                source_text(tree.words, self._linearization, first),
                linearize(tree, self._linearization, first),
            )

    def trees(self) -> Iterator[Tree]:
        """Yields the trees in the order of the files.

        Raises:
            DataError: If a file has no tree, or one that cannot be read or linearized.
        """
        for path, _ in self._files:
            count = 0
            for line, tree in read_trees(path):
                count += 1
                try:
                    check_tags(tree, self._linearization)
                except ValueError as error:
                    raise DataError(f"{path}:{line}: {error}") from None
                yield tree
            if not count:
                raise DataError(f"{path}: must contain at least one tree")

    def symbols(self) -> list[str]:
        """Returns all symbols of the trees. Each needs a separate id."""
        return collect_symbols(self.trees(), self._linearization)

    def sentences(self) -> Iterator[str]:
        """Yields the words of each tree as text, for training a tokenizer."""
        return (" ".join(tree.words) for tree in self.trees())

    def weights(self, numbers: np.ndarray) -> np.ndarray | None:
        """Returns how often trees occur per epoch, or `None` if each occurs once.

        `numbers` are the positions of the trees, counted from 1.
        """
        if all(weight == 1 for _, weight in self._files):
            return None
        counts = [len(lines) for lines in self._lines]
        weights = np.repeat([weight for _, weight in self._files], counts)
        return weights[numbers - 1]

    def locate(self, number: int, is_target: bool = False) -> str:
        """Returns the location of pair `number`, counted from 1, as `file:line`."""
        paths = (path for path, _ in self._files)
        return locate_in_files(number, zip(paths, self._lines, strict=True))

    def fingerprint(self) -> str:
        """Returns a string that changes with the files, weights, and linearization."""
        parts = [f"{content_hash(path)}*{weight}" for path, weight in self._files]
        return ";".join(["trees", self._linearization, *parts])

    @functools.cached_property
    def _lines(self):
        """The line numbers at which each file's trees begin."""
        return [[line for line, _ in read_trees(path)] for path, _ in self._files]


def _files(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    found = visible_files(path)
    if not found:
        raise DataError(f"{path}: must contain at least one file")
    return found
