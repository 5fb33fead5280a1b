"""Sources read pairs from columns of TSV and CSV, and from keys of JSON Lines."""

import csv
import gzip
import json

import pytest

from keras_transformer.errors import DataError
from keras_transformer.pipelines import CsvFiles, HuggingFacePairs, JsonLines, TsvFiles

# U+2028 must not end a line, a quote must not quote a field, and a text may be empty.
PAIRS = [
    ("A man\u2028 rides.", 'Ein "Mann'),
    ("", "leer"),
    ("Two dogs.", "Zwei Hunde."),
]


def write(path, lines):
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.tsv.gz"])
def test_tsv_reads_numbered_columns(tmp_path, name):
    path = write(tmp_path / name, [f"{t}\tx\t{s}" for s, t in PAIRS])
    source = TsvFiles([path, path], source=3, target=1)
    assert list(source) == list(source) == PAIRS * 2
    # Each copy of the file has three pairs, so pair 5 is line 2 of the second copy.
    assert source.locate(2) == f"{path}:2"
    assert source.locate(5) == f"{path}:2"
    with pytest.raises(IndexError, match="no pair 7"):
        source.locate(7)


def test_tsv_reads_named_columns(tmp_path):
    path = write(
        tmp_path / "a.tsv", ["id\tde\ten", *(f"1\t{t}\t{s}" for s, t in PAIRS)]
    )
    source = TsvFiles(path, source="en", target="de")
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


def test_csv_finds_the_delimiter_outside_of_quotes(tmp_path):
    path = write(tmp_path / "a.csv", ['"a, b, c, d"\t"e"', "f\tg,h"])
    assert list(CsvFiles(path)) == [("a, b, c, d", "e"), ("f", "g,h")]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["Well, yes, sure;Ja", "No, thanks;Nein"], r"csv:2: has 2 cells, .* has 3"),
        (["en,de", "Hello, world,Hallo Welt"], r"csv:2: has 3 cells, .* has 2"),
        (["sep=;", "a;b"], "csv:1: remove the line 'sep=;'"),
    ],
)
def test_csv_with_unequal_lines_is_rejected(tmp_path, lines, message):
    with pytest.raises(DataError, match=message):
        list(CsvFiles(write(tmp_path / "a.csv", lines)))


def test_csv_names_the_line_of_an_unmatched_quote(tmp_path):
    path = write(tmp_path / "a.csv", ["a,b", '"c', 'd",e'])
    with pytest.raises(DataError, match=r"a\.csv:2: must be a line of CSV, and each"):
        list(CsvFiles(path))


@pytest.mark.parametrize("header", ['"en"\t"de"', "en\tde"])
@pytest.mark.parametrize("count", [2, 100, 101, 5_000])
def test_tsv_in_quotes_is_rejected(tmp_path, count, header):
    """The quotes would be learned as text. A few lines of direct speech stay text."""
    path = write(tmp_path / "a.tsv", [header, *['"a"\t"b"'] * (count - 1)])
    with pytest.raises(DataError, match=r"a\.tsv: all cells are in quotes.*kind: csv"):
        list(TsvFiles(path))
    write(path, ['"a"\t"b"'] * min(count, 99) + ['"a"\tb'])
    assert list(TsvFiles(path))[-2:] == [('"a"', '"b"'), ('"a"', "b")]


def test_jsonl_reads_nested_keys(tmp_path):
    rows = [{"id": 1, "translation": {"en": s, "de": t}} for s, t in PAIRS]
    path = write(tmp_path / "a.jsonl", map(json.dumps, rows))
    source = JsonLines(path, "translation.en", "translation.de")
    assert list(source) == PAIRS
    assert source.locate(3) == f"{path}:3"


def test_lines_that_are_not_utf8_keep_their_number(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"a\tb\n\xff\tc\nd\te\n")
    found = list(TsvFiles(tmp_path / "a.tsv"))
    assert found == [("a", "b"), (None, None), ("d", "e")]


def test_fingerprint_changes_with_content_and_columns(tmp_path):
    path = write(tmp_path / "a.tsv", ["a\tb\tc"])
    prints = {TsvFiles(path).fingerprint(), TsvFiles(path, 2, 1).fingerprint()}
    write(path, ["a\tb\td"])
    prints.add(TsvFiles(path).fingerprint())
    assert len(prints) == 3


def test_tsv_names_the_line_without_a_column(tmp_path):
    message = r"a.tsv:2: data.target is column 2, but the line has only 1"
    path = write(tmp_path / "a.tsv", ["a\tb", "only one"])
    with pytest.raises(DataError, match=message):
        list(TsvFiles(path))


def test_blank_lines_are_empty_pairs(tmp_path):
    """They are dropped later, as in text files, and the other lines keep their number.

    Files that are edited by hand often end with one.
    """
    path = write(tmp_path / "a.tsv", ["a\tb", " ", "c\td", ""])
    assert list(TsvFiles(path)) == [("a", "b"), ("", ""), ("c", "d"), ("", "")]
    assert TsvFiles(path).locate(3) == f"{path}:3"
    path = write(tmp_path / "a.jsonl", ['{"source": "a", "target": "b"}', " ", ""])
    assert list(JsonLines(path)) == [("a", "b"), ("", ""), ("", "")]


def test_equal_sides_are_rejected(tmp_path):
    """A model would learn to copy."""
    for call in (
        lambda: TsvFiles("a.tsv", 2),
        lambda: TsvFiles("a.tsv", "en", "en"),
        lambda: JsonLines("a.jsonl", "target"),
        lambda: HuggingFacePairs("data", target="translation.en"),
    ):
        with pytest.raises(DataError, match=r"must differ\. Received: both are"):
            call()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"a.jsonl:2: not a JSON object"),
        ("[" * 100_000, r"a.jsonl:2: not a JSON object"),
        ("[1]", r"a.jsonl:2: data.source=source must be a key .* Available: none"),
        ('{"target": "b"}', r"data.source=source must be a key .* Available: target"),
        ('{"source": 1, "target": "b"}', r"data.source=source must be text. .*int"),
    ],
)
def test_jsonl_names_the_line_without_a_text(tmp_path, line, message):
    path = write(tmp_path / "a.jsonl", ['{"source": "a", "target": "b"}', line])
    with pytest.raises(DataError, match=message):
        list(JsonLines(path))


def test_lone_surrogates_become_question_marks(tmp_path):
    path = write(tmp_path / "a.jsonl", [r'{"source": "a\ud800", "target": "b"}'])
    assert list(JsonLines(path)) == [("a?", "b")]


def test_invalid_columns_and_files_are_rejected(tmp_path):
    path = write(tmp_path / "a.tsv", ["en\tde\tde", "a\tb\tc"])
    with pytest.raises(DataError, match="both be column numbers or both be names"):
        TsvFiles(path, "en", 2)
    for columns in ((0, 2), (1, -1)):
        with pytest.raises(DataError, match=r"from 1 or names\. Received: (0|1) and"):
            TsvFiles(path, *columns)
    for target in ("fr", "de"):
        with pytest.raises(DataError, match=r"a.tsv:1: data.target must be one of the"):
            list(TsvFiles(path, "en", target))
    with pytest.raises(DataError, match="must contain at least one file"):
        JsonLines([])
    empty = write(tmp_path / "empty.tsv", [])
    with pytest.raises(DataError, match=r"empty.tsv: the file has no pairs"):
        list(TsvFiles(empty))
