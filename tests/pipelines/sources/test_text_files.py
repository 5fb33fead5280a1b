"""`TextFiles` pairs the lines of two files; the others read both sides from one.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import csv
import functools
import gzip
import json
import os

import pytest

from keras_transformer.errors import DataError
from keras_transformer.pipelines import (
    CsvFiles,
    HuggingFacePairs,
    JsonLines,
    TextFiles,
    TmxFiles,
    TsvFiles,
)

# U+2028 must not end a line, a quote must not quote a field, and a text may be empty.
PAIRS = [
    ("A man\u2028 rides.", 'Ein "Mann'),
    ("", "leer"),
    ("Two dogs.", "Zwei Hunde."),
]


@pytest.fixture
def write(tmp_path):
    """Function that writes lines (str or bytes) to a file and returns its path."""

    def write(name, *lines):
        content = b"".join(
            (line if isinstance(line, bytes) else line.encode()) + b"\n"
            for line in lines
        )
        path = tmp_path / name
        path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
        return str(path)

    return write


def test_text_files_iterate_in_order_and_repeatedly(write):
    files = TextFiles(
        [write("a.en", "one", "two"), write("b.en.gz", "three")],
        [write("a.de.gz", "eins", "zwei"), write("b.de", "drei")],
    )
    pairs = [("one", "eins"), ("two", "zwei"), ("three", "drei")]
    assert list(files) == list(files) == pairs


def test_invalid_utf8_becomes_none(write):
    files = TextFiles(
        write("a", "1", b"\xff", "3"), write("b.gz", "eins", "zwei", b"\xc3")
    )
    assert list(files) == [("1", "eins"), (None, "zwei"), ("3", None)]
    # Lines keep their number.
    assert list(TsvFiles(write("a.tsv", b"\xff\tc", "d\te"))) == [
        (None,) * 2,
        ("d", "e"),
    ]


def test_locate_returns_file_and_line(write):
    first, second = write("a", "1", "2", "3"), write("b.gz", "4", "5")
    files = TextFiles([first, second], [first, second])
    places = [files.locate(number) for number in range(1, 6)]
    expected = [f"{first}:1", f"{first}:2", f"{first}:3", f"{second}:1", f"{second}:2"]
    assert places == expected
    with pytest.raises(IndexError):
        files.locate(6)


@pytest.mark.fault("F13", "an error with both counts before any pair is read")
def test_different_line_counts_are_rejected_before_any_pair(write):
    files = TextFiles(
        [write("a.en", "1"), write("b.en", "2", "3", "4")],
        [write("a.de", "1"), write("b.de.gz", "2", "3")],
    )
    # Although the first two files agree, no pair is yielded.
    with pytest.raises(DataError, match=r"b\.en and .*b\.de\.gz must .*: 3 and 2"):
        next(iter(files))


@pytest.mark.fault("F12", "an error that names the file")
@pytest.mark.parametrize("name", ["empty.de", "empty.de.gz"])
def test_empty_file_is_rejected(write, name):
    with pytest.raises(DataError, match=rf"{name}: the file is empty"):
        list(TextFiles(write("a.en", "1"), write(name)))


def test_missing_files_and_pipes_are_rejected(write, tmp_path):
    """Text is read several times, but a pipe only once. Opening it could block."""
    os.mkfifo(tmp_path / "pipe")
    for name, problem in {
        "no.de": "no such file",
        "pipe": "must be a regular file, not a pipe",
    }.items():
        files = TextFiles(write("a.en", "1"), tmp_path / name)
        for use in (list, TextFiles.fingerprint):
            with pytest.raises(DataError, match=f"{name}: {problem}"):
                use(files)
    with pytest.raises(DataError, match=r"2 source files .* 1 target files"):
        TextFiles([write("a", "1"), write("b", "2")], [write("c", "3")])
    with pytest.raises(DataError, match="at least one"):
        TextFiles([], [])


def test_fingerprint_depends_on_content_order_side_and_column(write):
    a, b, c = write("a", "1"), write("b", "2"), write("c", "1")
    fingerprints = [
        TextFiles(*sides).fingerprint()
        for sides in [([a], [b]), ([b], [a]), ([a, b], [b, a]), ([b, a], [a, b])]
    ]
    assert len(set(fingerprints)) == 4
    assert TextFiles([c], [b]).fingerprint() == fingerprints[0]
    write("a", "changed")
    assert TextFiles([a], [b]).fingerprint() != fingerprints[0]
    path = write("a.tsv", "a\tb\tc")
    tables = {TsvFiles(path).fingerprint(), TsvFiles(path, 2, 1).fingerprint()}
    write("a.tsv", "a\tb\td")
    assert len(tables | {TsvFiles(path).fingerprint()}) == 3


@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.tsv.gz"])
def test_tsv_reads_numbered_or_named_columns(write, name):
    rows = [f"{target}\tx\t{source}" for source, target in PAIRS]
    path = write(name, *rows)
    source = TsvFiles([path, path], source=3, target=1)
    assert list(source) == list(source) == PAIRS * 2
    # Each copy of the file has three pairs, so pair 5 is line 2 of the second copy.
    assert source.locate(2) == source.locate(5) == f"{path}:2"
    with pytest.raises(IndexError, match="no pair 7"):
        source.locate(7)
    source = TsvFiles(write(name, "de\tid\ten", *rows), source="en", target="de")
    assert list(source) == PAIRS
    # Line 1 contains the column names.
    assert source.locate(1) == f"{path}:2"


@pytest.mark.parametrize("delimiter", ["\t", ",", ";"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_ALL, csv.QUOTE_MINIMAL])
@pytest.mark.parametrize("columns", [("en", "de"), (2, 1)])
def test_csv_reads_what_spreadsheets_write(tmp_path, delimiter, quoting, columns):
    pairs = [*PAIRS, ('Yes; "no", \tand', ""), ("a,b;c", "x")]
    rows = [("de", "en"), *((target, source) for source, target in pairs)]
    with open(tmp_path / "a.csv", "w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file, delimiter=delimiter, quoting=quoting).writerows(rows)
    source = CsvFiles(tmp_path / "a.csv", *columns)
    assert list(source) == (pairs if columns[0] == "en" else [("en", "de"), *pairs])
    last = len(list(source))
    assert source.locate(last) == f"{tmp_path}/a.csv:{len(rows)}"


def test_csv_finds_the_delimiter_outside_of_quotes(write):
    path = write("a.csv", '"a, b, c, d"\t"e"', "f\tg,h")
    assert list(CsvFiles(path)) == [("a, b, c, d", "e"), ("f", "g,h")]


@pytest.mark.parametrize("header", ['"en"\t"de"', "en\tde"])
@pytest.mark.parametrize("count", [2, 100, 101, 5_000])
def test_tsv_in_quotes_is_rejected(write, count, header):
    """The quotes would be learned as text. A few lines of direct speech stay text."""
    path = write("a.tsv", header, *['"a"\t"b"'] * (count - 1))
    with pytest.raises(DataError, match=r"a\.tsv: all cells are in quotes.*kind: csv"):
        list(TsvFiles(path))
    write("a.tsv", *['"a"\t"b"'] * min(count, 99), '"a"\tb')
    assert list(TsvFiles(path))[-2:] == [('"a"', '"b"'), ('"a"', "b")]


def test_jsonl_reads_nested_keys(write):
    rows = [{"id": 1, "translation": {"en": s, "de": t}} for s, t in PAIRS]
    path = write("a.jsonl", *map(json.dumps, rows))
    source = JsonLines(path, "translation.en", "translation.de")
    assert list(source) == PAIRS
    assert source.locate(3) == f"{path}:3"
    write("a.jsonl", r'{"source": "a\ud800", "target": "b"}')
    assert list(JsonLines(path)) == [("a?", "b")]


TMX = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en"/><body>{}</body></tmx>"""
UNITS = """
<tu><tuv xml:lang="de-DE"><prop>x</prop><seg>Ein <hi>Ä &amp; B</hi>.</seg></tuv>
  <tuv xml:lang="EN-us">
    <seg>An <bpt i="1">&lt;b></bpt>A
    and B<ept i="1">&lt;/b></ept>.</seg></tuv></tu>
<tu><tuv xml:lang="fr"><seg>Un</seg></tuv><tuv xml:lang="en"><seg>One</seg></tuv></tu>
<tu><tuv lang="en"><seg>Two</seg></tuv><tuv lang="de"><seg/></tuv></tu>"""


def test_tmx_reads_text_of_two_languages(write):
    path = write("a.tmx", *TMX.format(UNITS).splitlines())
    source = TmxFiles([path, path], "en", "de")
    assert list(source) == [("An A and B.", "Ein Ä & B."), ("Two", "")] * 2
    assert [source.locate(number) for number in (1, 2, 4)] == [
        f"{path}:{line}" for line in (7, 9, 9)
    ]
    assert list(TmxFiles(path, "fr", "en")) == [("Un", "One")]


def test_blank_lines_are_empty_pairs(write):
    """They are dropped later, as in text files, and the other lines keep their number.

    Files that are edited by hand often end with one.
    """
    source = TsvFiles(path := write("a.tsv", "a\tb", " ", "c\td", ""))
    assert list(source) == [("a", "b"), ("", ""), ("c", "d"), ("", "")]
    assert source.locate(3) == f"{path}:3"
    path = write("a.jsonl", '{"source": "a", "target": "b"}', " ", "")
    assert list(JsonLines(path)) == [("a", "b"), ("", ""), ("", "")]


EnglishGerman = functools.partial(TmxFiles, source="en", target="de")
GOOD = '{"source": "a", "target": "b"}'


@pytest.mark.parametrize(
    ("reader", "lines", "message"),
    [
        (CsvFiles, ["Well, yes, sure;Ja", "No, thanks;Nein"], r"2: has 2 cells.* 3 "),
        (CsvFiles, ["en,de", "Hello, world,Hallo"], r"2: has 3 cells, .* has 2"),
        (CsvFiles, ["sep=;", "a;b"], "Received: 'sep=;'. Remove it"),
        (CsvFiles, ["a,b", '"c', 'd",e'], "2: must be a line of CSV, and each"),
        (TsvFiles, ["a\tb", "only one"], "2: data.target is column 2, .* has only 1"),
        (TsvFiles, [], " the file has no pairs"),
        (EnglishGerman, ["<tmx>", "<body>", "</tmx>"], "3: not TMX: mismatched tag"),
        (EnglishGerman, ["<tmx><body>"], "2: not TMX: no element found"),
        (EnglishGerman, ["a"], "1: not TMX: syntax error"),
        (EnglishGerman, [TMX.format("")], " data.source and .* en and de. Ava.*: none"),
        (JsonLines, [GOOD, "{"], "2: not a JSON object"),
        (JsonLines, [GOOD, "[" * 100_000], "2: not a JSON object"),
        (JsonLines, [GOOD, "[1]"], "2: data.source=source must be a key .*: none"),
        (JsonLines, ['{"target": "b"}'], "source must be a key .* Available: target"),
        (JsonLines, ['{"source": 1, "target": "b"}'], "=source must be text. .*int"),
    ],
)
def test_errors_name_the_line(write, reader, lines, message):
    path = write("pairs", *lines)
    with pytest.raises(DataError, match=f"^{path}:.*{message}"):
        list(reader(path))


@pytest.mark.parametrize(
    ("reader", "arguments", "message"),
    [
        (TsvFiles, ("en", 2), "both be column numbers or both be names"),
        (TsvFiles, (0, 2), r"from 1 or names\. Received: 0 and"),
        (TsvFiles, (1, -1), r"from 1 or names\. Received: 1 and"),
        (TsvFiles, ("en", "fr"), ":1: data.target must be one of the"),
        (TsvFiles, ("en", "de"), ":1: data.target must be one of the"),
        # With equal sides, a model would learn to copy.
        (TsvFiles, (2,), r"must differ\. Received: both are"),
        (TsvFiles, ("en", "en"), r"must differ\. Received: both are"),
        (JsonLines, ("target",), r"must differ\. Received: both are"),
        (HuggingFacePairs, ("train", "translation.de"), "must differ"),
    ],
)
def test_invalid_columns_are_rejected(write, reader, arguments, message):
    path = write("a.tsv", "en\tde\tde", "a\tb\tc")
    with pytest.raises(DataError, match=message):
        list(reader(path, *arguments))
    with pytest.raises(DataError, match="must contain at least one file"):
        JsonLines([])
