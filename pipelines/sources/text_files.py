"""Sources of sentence pairs: text files, plain or compressed."""

import csv
import functools
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from xml.etree import ElementTree

from keras_transformer.errors import DataError
from keras_transformer.pipelines.lines import (
    check_aligned,
    content_hash,
    count_lines,
    read_lines,
)
from keras_transformer.pipelines.sources.base import (
    Pair,
    Pairs,
    Path,
    as_paths,
    locate_in_files,
)
from keras_transformer.untrusted import require_regular

# A TSV file with quotes around all cells of so many lines is taken for CSV.
_QUOTED_LINES = 100


class TextFiles(Pairs):
    """Line-aligned text files, plain or compressed.

    Iteration yields `(source, target)`. A side that is not UTF-8 is `None`, so the
    i-th pair is always line i, counted across all files.

    Args:
        source: Path or list of paths of the source-language files.
        target: Path or list of paths of the target-language files, in the same order.
        alignments: Path or list of paths of files with the word alignment of each pair
            in Pharaoh's format, such as `0-0 1-2`, or `None`.

    Raises:
        DataError: If no files are given or the numbers of files differ. Iteration
            raises it before the first pair if a file cannot be read or is empty, or if
            the numbers of lines of two files differ.

    Examples:
        >>> import pathlib
        >>> size = pathlib.Path("train.en").write_text("a dog runs\\na cat\\n")
        >>> size = pathlib.Path("train.de").write_text("ein Hund rennt\\neine Katze\\n")
        >>> list(kt.pipelines.TextFiles("train.en", "train.de"))
        [('a dog runs', 'ein Hund rennt'), ('a cat', 'eine Katze')]
    """

    def __init__(
        self,
        source: Path | Sequence[Path],
        target: Path | Sequence[Path],
        alignments: Path | Sequence[Path] | None = None,
    ):
        self.source = as_paths(source)
        self.target = as_paths(target)
        self._alignments = None if alignments is None else as_paths(alignments)
        self._num_lines = functools.cache(count_lines)
        if not self.source or len(self.source) != len(self.target):
            raise DataError(
                "source and target must have the same number of files, at least one. "
                f"Received: {len(self.source)} source files "
                f"({', '.join(self.source)}) and {len(self.target)} target files "
                f"({', '.join(self.target)})"
            )

    def __iter__(self) -> Iterator[Pair]:
        for paths in zip(self.source, self.target, strict=True):
            check_aligned(*paths)
        for source, target in zip(self.source, self.target, strict=True):
            yield from zip(
                read_lines(source, errors="drop"),
                read_lines(target, errors="drop"),
                strict=True,
            )

    def locate(self, number: int, is_target: bool = False) -> str:
        """Returns the location of pair `number`, from 1, in a file of one side."""
        paths = self.target if is_target else self.source
        files = ((path, range(1, self._num_lines(path) + 1)) for path in paths)
        return locate_in_files(number, files)

    def num_pairs(self) -> int:
        return sum(map(self._num_lines, self.source))

    def fingerprint(self) -> str:
        """Returns a string that changes with the content and the order of the files."""
        sides = (self.source, self.target, *filter(None, [self._alignments]))
        return ";".join(",".join(map(content_hash, paths)) for paths in sides)

    def alignments(self):
        if self._alignments is None:
            return None
        # Before anything is encoded.
        for paths in zip(self.source, self._alignments, strict=True):
            check_aligned(*paths)
        files = zip(self.source, self.target, self._alignments, strict=True)
        return itertools.chain.from_iterable(
            map(_read_alignments, *zip(*files, strict=True))
        )


def _read_alignments(source, target, path):
    """Yields the links of each pair of two files."""
    files = (read_lines(each, errors="drop") for each in (source, target, path))
    for number, (*texts, line) in enumerate(zip(*files, strict=True), 1):
        sizes = [len((text or "").split()) for text in texts]
        links = []
        for link in (line or "").split():
            match = re.fullmatch(r"(\d+)-(\d+)", link)
            words = tuple(map(int, match.groups())) if match else ()
            if not match or words[0] >= sizes[0] or words[1] >= sizes[1]:
                raise DataError(
                    f"{path}:{number}: {link} must be a link of the {sizes[0]} source "
                    f"and {sizes[1]} target words, such as 0-0"
                )
            links.append(words)
        yield links


class PairLines(Pairs):
    """Base class of sources whose files have one pair per line, plain or compressed.

    Iteration yields `(source, target)`, `("", "")` for a blank line, and `(None, None)`
    for a line that is not UTF-8.
    """

    def __init__(self, paths: Path | Sequence[Path], source, target):
        check_sides(source, target)
        self.paths = as_paths(paths)
        self.source = source
        self.target = target
        self._num_lines = functools.cache(count_lines)
        if not self.paths:
            raise DataError("`paths` must contain at least one file. Received: none")

    def parse(self, lines: Iterable[str | None], path: str) -> Iterator[Pair]:
        """Yields the pair of each line, which is `None` if it is not UTF-8.

        Raises:
            DataError: If a line cannot be read as a pair. The message names file and
                line.
        """
        raise NotImplementedError(f"{type(self).__name__} reads no files.")

    # Number of lines before the first pair of a file.
    _num_header_lines = 0
    is_xml = False

    def __iter__(self) -> Iterator[Pair]:
        require_regular(self.paths, DataError)
        for path in self.paths:
            is_empty = True
            lines = read_lines(path, errors="drop", is_xml=self.is_xml)
            for pair in self.parse(lines, path):
                is_empty = False
                yield pair
            if is_empty:
                raise DataError(f"{path}: the file has no pairs")

    def locate(self, number: int, is_target: bool = False) -> str:
        """Returns the location of pair `number`, from 1, as `file:line`."""
        first, ends = self._num_header_lines + 1, self._num_lines
        files = ((path, range(first, ends(path) + 1)) for path in self.paths)
        return locate_in_files(number, files)

    def num_pairs(self) -> int | None:
        if self.is_xml:
            return None
        return sum(
            self._num_lines(path) - self._num_header_lines for path in self.paths
        )

    def fingerprint(self) -> str:
        """Returns a string that changes with the files, their order and the columns."""
        contents = ",".join(map(content_hash, self.paths))
        return f"{type(self).__name__};{contents};{self.source!r};{self.target!r}"


class TsvFiles(PairLines):
    r"""Files with columns separated by tabs, without quotes or escapes.

    Args:
        paths: Path of a file, or list of paths.
        source: Column of the source text: its number from 1, or its name. With names,
            the first line of each file is the header.
        target: Column of the target text, in the same form.

    Raises:
        DataError: If `paths` is empty, only one column is given by name, or a number is
            below 1. Iteration raises it if a file cannot be read or has no pair, a line
            lacks a column, or the header does not contain each name exactly once.

    Examples:
        >>> import pathlib
        >>> lines = "en\tid\tde\na dog\t1\tein Hund\n"
        >>> size = pathlib.Path("pairs.tsv").write_text(lines)
        >>> list(kt.pipelines.TsvFiles("pairs.tsv", source="en", target="de"))
        [('a dog', 'ein Hund')]
    """

    def __init__(self, paths: Path | Sequence[Path], source=1, target=2):
        super().__init__(paths, source, target)
        if isinstance(source, str) != isinstance(target, str):
            raise DataError(
                "`source` and `target` must both be column numbers or both be names. "
                f"Received: {source!r} and {target!r}"
            )
        self._num_header_lines = int(isinstance(source, str))
        # Python would count a column below 1 from the end of the line.
        if not isinstance(source, str) and min(source, target) < 1:
            raise DataError(
                "data.source and data.target must be column numbers from 1 or names. "
                f"Received: {source} and {target}"
            )

    def parse(self, lines, path):
        columns = {"data.source": self.source, "data.target": self.target}
        for number, cells in enumerate(self._rows(lines, path), start=1):
            if number <= self._num_header_lines:
                cells = cells or []
                for key, name in columns.items():
                    if cells.count(name) != 1:
                        raise DataError(
                            f"{path}:1: {key} must be one of the columns "
                            f"{', '.join(cells)}. Received: {name}"
                        )
                    columns[key] = cells.index(name) + 1
            elif not cells:
                yield (None, None) if cells is None else ("", "")
            else:
                for key, column in columns.items():
                    if column > len(cells):
                        raise DataError(
                            f"{path}:{number}: {key} is column {column}, but the line "
                            f"has only {len(cells)}"
                        )
                yield tuple(cells[column - 1] for column in columns.values())

    def _rows(self, lines, path):
        """Yields each line's cells: none for a blank line, `None` if it is `None`."""
        # `None` after the first line without quotes around all cells. A spreadsheet's
        # header may have none.
        num_quoted = 0
        for number, line in enumerate(lines, start=1):
            cells = line and line.strip() and line.split("\t")
            if cells and num_quoted is not None and number > 1:
                is_quoted = all(len(c) > 1 and c[0] == c[-1] == '"' for c in cells)
                num_quoted = num_quoted + 1 if is_quoted else None
                if num_quoted == _QUOTED_LINES:
                    break
            yield cells
        if num_quoted:
            raise DataError(
                f"{path}: all cells are in quotes, as spreadsheets write them. Set "
                "data.kind: csv, which removes the quotes"
            )


class CsvFiles(TsvFiles):
    """Files with one pair per line, as spreadsheets write them.

    A cell may be in quotes, which double inside it. Cells are separated by tabs if the
    first line of the file has a tab outside of quotes, else by semicolons or commas,
    whichever it has more of.

    Args:
        paths: Path of a file, or list of paths.
        source: Column of the source text, as in `TsvFiles`.
        target: Column of the target text, in the same form.

    Raises:
        DataError: If `TsvFiles` raises it, the lines differ in their number of cells,
            or a line has unmatched quotes, such as those of a cell with several lines.

    Examples:
        >>> import pathlib
        >>> size = pathlib.Path("pairs.csv").write_text('"a dog; a cat";ein Hund\\n')
        >>> list(kt.pipelines.CsvFiles("pairs.csv"))
        [('a dog; a cat', 'ein Hund')]
    """

    def _rows(self, lines, path):
        delimiter = first = None
        for number, line in enumerate(lines, start=1):
            if not line or not line.strip():
                yield line and ""
                continue
            if delimiter is None and line.startswith("sep="):
                raise DataError(
                    f"{path}:{number}: Excel's separator line is not supported. "
                    f"Received: {line!r}. Remove it"
                )
            if delimiter is None:
                unquoted = re.sub('"[^"]*"', "", line)
                most = max(",;", key=unquoted.count)
                delimiter = "\t" if "\t" in unquoted else most
            try:
                cells = next(csv.reader([line], delimiter=delimiter, strict=True))
                first = first or len(cells)
                if len(cells) != first:
                    raise DataError(
                        f"{path}:{number}: has {len(cells)} cells, but the first line "
                        f"has {first} (separated by {delimiter!r})"
                    )
                yield cells
            except csv.Error as error:
                raise DataError(
                    f"{path}:{number}: must be a line of CSV, and each cell on one "
                    f"line. Received: {error}"
                ) from None


class JsonLines(PairLines):
    """Files whose lines are JSON objects.

    Args:
        paths: Path of a file, or list of paths.
        source: Key of the source text. Dots address nested objects, such as
            `"translation.en"`.
        target: Key of the target text, in the same form.

    Raises:
        DataError: If `paths` is empty. Iteration raises it if a file cannot be read or
            has no pair, a line is not a JSON object or lacks a key, or a value is not
            text.

    Examples:
        >>> import pathlib
        >>> line = '{"translation": {"en": "a dog", "de": "ein Hund"}}\\n'
        >>> size = pathlib.Path("pairs.jsonl").write_text(line)
        >>> keys = {"source": "translation.en", "target": "translation.de"}
        >>> list(kt.pipelines.JsonLines("pairs.jsonl", **keys))
        [('a dog', 'ein Hund')]
    """

    def __init__(self, paths: Path | Sequence[Path], source="source", target="target"):
        super().__init__(paths, source, target)

    def parse(self, lines, path):
        for number, line in enumerate(lines, start=1):
            if line is None or not line.strip():
                yield (None, None) if line is None else ("", "")
                continue
            place = f"{path}:{number}"
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                raise DataError(f"{place}: not a JSON object") from None
            yield nested_pair(value, self, place)


# The attribute `xml:lang`.
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
# Elements of a <seg> whose content is not text, but code of another format.
_CODE = {"bpt", "ept", "it", "ph", "ut"}


class TmxFiles(PairLines):
    """Translation memories: files in TMX, encoded in UTF-8.

    A pair is a unit (<tu>) with both languages, without the tags in its text. Other
    units are skipped. Each run of white space becomes a space.

    Args:
        paths: Path of a file, or list of paths.
        source: Code of the source language, such as `"en"`, which includes `"en-US"`.
        target: Code of the target language, in the same form.

    Raises:
        DataError: If `paths` is empty. Iteration raises it if a file cannot be read, is
            not TMX in UTF-8, or has no pair of these languages.

    Examples:
        >>> import pathlib
        >>> unit = '<tu><tuv xml:lang="en"><seg>a dog</seg></tuv>'
        >>> unit += '<tuv xml:lang="de-AT"><seg>ein Hund</seg></tuv></tu>'
        >>> text = f"<tmx><body>{unit}</body></tmx>"
        >>> size = pathlib.Path("memory.tmx").write_text(text)
        >>> list(kt.pipelines.TmxFiles("memory.tmx", "en", "de"))
        [('a dog', 'ein Hund')]
    """

    is_xml = True

    def __init__(self, paths: Path | Sequence[Path], source, target):
        super().__init__(paths, source, target)
        self._pair_lines = {}

    def parse(self, lines, path):
        return (pair for _, pair in self._numbered_pairs(lines, path))

    def locate(self, number: int, is_target: bool = False) -> str:
        """Returns the location of pair `number`, from 1, as `file:line` of its end."""
        for path in self.paths:
            if path not in self._pair_lines:
                lines = read_lines(path, errors="drop", is_xml=True)
                pairs = self._numbered_pairs(lines, path)
                self._pair_lines[path] = [line for line, _ in pairs]
        files = ((path, self._pair_lines[path]) for path in self.paths)
        return locate_in_files(number, files)

    def _numbered_pairs(self, lines, path):
        """Yields the pairs with the numbers of their lines."""
        parser = ElementTree.XMLPullParser(["start", "end"])
        body, found, is_empty = None, set(), True
        try:
            for number, line in enumerate(lines, start=1):
                if line is None:
                    raise DataError(f"{path}:{number}: not UTF-8")
                parser.feed(f"{line}\n")
                for event, element in parser.read_events():
                    if element.tag == "body":
                        body = element
                    if event == "end" and element.tag == "tu" and body is not None:
                        variants = {
                            (each.get(_LANGUAGE) or each.get("lang", "")).lower(): each
                            for each in element.iter("tuv")
                        }
                        body.clear()  # frees the memory of the pair
                        codes = self.source.lower(), self.target.lower()
                        sides = tuple(_side(variants, code) for code in codes)
                        found.update(variants)
                        if None not in sides:
                            is_empty = False
                            yield number, sides
            parser.close()
        except ElementTree.ParseError as error:
            line, _ = error.position
            raise DataError(f"{path}:{line}: not TMX: {error}") from None
        if is_empty:
            raise DataError(
                f"{path}: data.source and data.target must be languages of the file. "
                f"Received: {self.source} and {self.target}. Available: "
                f"{', '.join(sorted(found)) or 'none'}"
            )


def _side(variants, code):
    """Returns the text in a language, or `None`, from elements by language."""
    for language, variant in variants.items():
        if language == code or language.startswith(f"{code}-"):
            segment = variant.find("seg")
            if segment is not None:
                return " ".join("".join(_segment_texts(segment)).split())
    return None


def _segment_texts(element):
    """Yields the texts in an element of TMX, without those in elements of code."""
    yield element.text or ""
    for child in element:
        if child.tag not in _CODE:
            yield from _segment_texts(child)
        yield child.tail or ""


# The classes by their `data.kind` in a recipe.
PAIR_LINES = {"tsv": TsvFiles, "csv": CsvFiles, "jsonl": JsonLines, "tmx": TmxFiles}


def check_sides(source, target) -> None:
    """Raises `DataError` if both sides are the same column or key."""
    if source == target:
        raise DataError(
            f"`source` and `target` must differ. Received: both are {source!r}"
        )


def nested_pair(value, keys, place: str) -> Pair:
    """Returns the texts at `keys.source` and `keys.target` of nested mappings.

    Dots in the keys lead to inner mappings. `place` is the location of the outermost
    one, `value`, for messages.
    """
    return tuple(
        _nested_text(value, getattr(keys, side), f"data.{side}", place)
        for side in ("source", "target")
    )


def _nested_text(value, dotted, key, place):
    for name in dotted.split("."):
        if not isinstance(value, dict) or name not in value:
            known = ", ".join(map(str, value)) if isinstance(value, dict) else "none"
            raise DataError(
                f"{place}: {key}={dotted} must be a key of the object. Available: "
                f"{known}"
            )
        value = value[name]
    if not isinstance(value, str):
        raise DataError(
            f"{place}: the value at {key}={dotted} must be text. Received: "
            f"{type(value).__name__}"
        )
    # A lone surrogate is valid JSON, but not UTF-8.
    return value.encode("utf-8", "replace").decode("utf-8")
