"""Source of sentence pairs: line-aligned text files."""

from collections.abc import Iterator, Sequence

from keras_transformer.errors import DataError
from keras_transformer.pipelines.lines import content_hash, count_lines, read_lines
from keras_transformer.pipelines.sources.base import (
    LineCounts,
    Pair,
    Pairs,
    Path,
    as_paths,
    locate_in_files,
)


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
        self._counts = LineCounts()
        if not self.source or len(self.source) != len(self.target):
            raise DataError(
                "source and target must have the same number of files, at least one. "
                f"Received: {len(self.source)} source files "
                f"({', '.join(self.source)}) and {len(self.target)} target files "
                f"({', '.join(self.target)})."
            )

    def __iter__(self) -> Iterator[Pair]:
        self._check_line_counts()
        for source, target in zip(self.source, self.target, strict=True):
            yield from zip(
                read_lines(source, errors="drop"),
                read_lines(target, errors="drop"),
                strict=True,
            )

    def locate(self, number: int) -> str:
        """Returns the location of pair `number`, from 1, as `source file:line`."""
        sizes = ((path, self._counts[path]) for path in self.source)
        return locate_in_files(number, sizes)

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
