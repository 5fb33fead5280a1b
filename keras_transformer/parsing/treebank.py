"""Treebank files as a source of (sentence, symbols of its tree)."""

import os
import zlib
from collections.abc import Iterator
from collections.abc import Sequence

import numpy as np

from keras_transformer.errors import DataError
from keras_transformer.parsing.linearization import NUMBERS
from keras_transformer.parsing.linearization import WORD_SYMBOLS
from keras_transformer.parsing.linearization import linearize
from keras_transformer.parsing.linearization import source_text
from keras_transformer.parsing.linearization import symbols_of
from keras_transformer.parsing.trees import Tree
from keras_transformer.parsing.trees import read_trees
from keras_transformer.pipelines.lines import content_hash
from keras_transformer.pipelines.sources.base import Pairs

Path = str | os.PathLike


class TreeFiles(Pairs):
    """Files of bracketed trees, plain or ``.gz``; words are the source.

    Iterating yields ``(words, symbols)``, each a text with single spaces. Where words
    are numbered, each sentence has its own number to begin with, so that a model learns
    all of them equally well; numbers that only long sentences reach would be rare.

    Args:
        trees: path or list of paths. A folder stands for all files in it and below,
            in the order of their names, hidden ones left out.
        weights: for each path how many times an epoch of training holds each of its
            trees, such as 0.1 for a tenth of them, drawn anew in each epoch. None:
            once.
        words: what stands for a word among the symbols, see `linearize`.

    Raises:
        DataError: a path is missing, a folder holds no file, a weight is not above 0,
            or there are not as many; while iterating, a file has no trees or broken
            ones.
    """

    def __init__(
        self,
        trees: Path | Sequence[Path],
        weights: Sequence[float] | None = None,
        words: str = "tags",
    ):
        paths = [trees] if isinstance(trees, str | os.PathLike) else list(trees)
        weights = [1.0] * len(paths) if weights is None else list(weights)
        if len(weights) != len(paths) or not paths:
            raise DataError(
                "there must be as many weights as paths of trees, at least one. "
                f"Received: {len(weights)} weights, {len(paths)} paths."
            )
        if not all(weight > 0 and np.isfinite(weight) for weight in weights):
            raise DataError(f"weights of trees must be above 0. Received: {weights}.")
        if words not in WORD_SYMBOLS:
            raise ValueError(
                f"`words` must be one of {', '.join(WORD_SYMBOLS)}. "
                f"Received: {words!r}."
            )
        self._files = [
            (file, weight)
            for path, weight in zip(paths, weights, strict=True)
            for file in _files(os.fspath(path))
        ]
        self._words = words
        self._lines = None

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for tree in self.trees():
            first = zlib.crc32(" ".join(tree.words).encode()) % NUMBERS
            yield (
                source_text(tree.words, self._words, first),
                linearize(tree, self._words, first),
            )

    def trees(self) -> Iterator[Tree]:
        """The trees in the order of the files."""
        for path, _ in self._files:
            count = 0
            for _, tree in read_trees(path):
                count += 1
                yield tree
            if not count:
                raise DataError(f"{path}: there are no trees in it.")

    def symbols(self) -> list[str]:
        """All symbols of these trees: ids of their own for a tokenizer."""
        return symbols_of(self.trees(), self._words)

    def sentences(self) -> Iterator[str]:
        """The words alone, as text for a tokenizer."""
        return (" ".join(tree.words) for tree in self.trees())

    def weights(self, numbers: np.ndarray) -> np.ndarray | None:
        """The weights of pairs: float array as `numbers`; None if all are 1.

        Args:
            numbers: int array of the pairs' places, counted from 1.
        """
        if all(weight == 1 for _, weight in self._files):
            return None
        counts = [len(lines) for lines in self._lines_of_files()]
        weights = np.repeat([weight for _, weight in self._files], counts)
        return weights[numbers - 1]

    def locate(self, number: int) -> str:
        """Name the place of a pair, counted from 1, as ``file:line``."""
        rest = number
        for (path, _), lines in zip(self._files, self._lines_of_files(), strict=True):
            if rest <= len(lines):
                return f"{path}:{lines[rest - 1]}"
            rest -= len(lines)
        raise IndexError(f"There is no tree {number}.")

    def fingerprint(self) -> str:
        """A text that changes with the files, their order and their weights."""
        parts = [f"{content_hash(path)}*{weight}" for path, weight in self._files]
        words = "numbers from anywhere" if self._words == "numbers" else self._words
        return ";".join(["trees", words, *parts])

    def _lines_of_files(self):
        """For each file the lines on which its trees begin."""
        if self._lines is None:
            self._lines = [
                [line for line, _ in read_trees(path)] for path, _ in self._files
            ]
        return self._lines


def _files(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    found = []
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [
            os.path.join(folder, name)
            for name in sorted(names)
            if not name.startswith(".")
        ]
    if not found:
        raise DataError(f"{path}: there are no files in this folder.")
    return found
