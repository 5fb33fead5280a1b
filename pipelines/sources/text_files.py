"""Source of sentence pairs: line-aligned text files."""

import os
from collections.abc import Iterator, Sequence

from keras_transformer.errors import DataError
from keras_transformer.pipelines.lines import content_hash, count_lines, read_lines
from keras_transformer.pipelines.sources.base import Pairs

Path = str | os.PathLike


class TextFiles(Pairs):
    """Line-aligned text files, plain or compressed.

    Iteration yields `(source, target)`. A side that is not UTF-8 is `None`, so the
    i-th pair is always line i, counted across all files.

    Args:
        source: Path or list of paths of the source-language files.
        target: Path or list of paths of the target-language files, in the same order.

    Raises:
        DataError: If no files are given or the numbers of files differ. Iteration
            raises it before the first pair if a file cannot be read or is empty, or if
            the numbers of lines of two files differ.
    """

    def __init__(self, source: Path | Sequence[Path], target: Path | Sequence[Path]):
        self.source = as_paths(source)
        self.target = as_paths(target)
        self._counts = {}
        if not self.source or len(self.source) != len(self.target):
            raise DataError(
                "source and target must have the same number of files, at least one. "
                f"Received: {len(self.source)} source files "
                f"({', '.join(self.source)}) and {len(self.target)} target files "
                f"({', '.join(self.target)})."
            )

    def __iter__(self) -> Iterator[tuple[str | None, str | None]]:
        self._check_line_counts()
        for source, target in zip(self.source, self.target, strict=True):
            yield from zip(
                read_lines(source, errors="drop"),
                read_lines(target, errors="drop"),
                strict=True,
            )

    def locate(self, number: int) -> str:
        """Returns the location of pair `number`, from 1, as `source file:line`."""
        line = number
        for path in self.source:
            if path not in self._counts:
                self._counts[path] = count_lines(path)
            count = self._counts[path]
            if line <= count:
                return f"{path}:{line}"
            line -= count
        raise IndexError(f"There is no pair {number}.")

    def fingerprint(self) -> str:
        """Returns a string that changes with the content and the order of the files."""
        sides = (self.source, self.target)
        return ";".join(",".join(map(content_hash, paths)) for paths in sides)

    def _check_line_counts(self):
        for source, target in zip(self.source, self.target, strict=True):
            counts = count_lines(source), count_lines(target)
            for path, count in zip((source, target), counts, strict=True):
                if count == 0:
                    raise DataError(f"{path}: the file is empty.")
            if counts[0] != counts[1]:
                raise DataError(
                    f"{source} and {target} must have the same number of lines. "
                    f"Received: {counts[0]} and {counts[1]}."
                )


def as_paths(paths: Path | Sequence[Path]) -> list[str]:
    """Converts a path or a sequence of paths to a list of str."""
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    return [os.fspath(path) for path in paths]
