"""`TextFiles` pairs the lines of two files and rejects files that do not match.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import gzip
import os

import pytest

from keras_transformer.errors import DataError
from keras_transformer.pipelines import TextFiles


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
    assert list(files) == pairs
    assert list(files) == pairs


def test_text_files_accept_single_path(write, tmp_path):
    source, target = write("a", "x"), write("b", "y")
    assert list(TextFiles(source, tmp_path / "b")) == [("x", "y")]
    assert TextFiles(source, target).source == [source]


def test_invalid_utf8_becomes_none(write):
    files = TextFiles(
        write("a", "1", b"\xff", "3"), write("b.gz", "eins", "zwei", b"\xc3")
    )
    assert list(files) == [("1", "eins"), (None, "zwei"), ("3", None)]


def test_locate_returns_file_and_line(write):
    first, second = write("a", "1", "2", "3"), write("b.gz", "4", "5")
    files = TextFiles([first, second], [first, second])
    places = [files.locate(number) for number in range(1, 6)]
    assert places == [f"{first}:{n}" for n in (1, 2, 3)] + [
        f"{second}:1",
        f"{second}:2",
    ]
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


def test_missing_file_is_rejected(write, tmp_path):
    files = TextFiles(write("a.en", "1"), tmp_path / "no.de")
    for use in (list, TextFiles.fingerprint):
        with pytest.raises(DataError, match=r"no\.de: no such file"):
            use(files)


def test_different_numbers_of_files_are_rejected(write):
    with pytest.raises(DataError, match=r"2 source files .* 1 target files"):
        TextFiles([write("a", "1"), write("b", "2")], [write("c", "3")])
    with pytest.raises(DataError, match="at least one"):
        TextFiles([], [])


def test_fingerprint_depends_on_content_order_and_side(write):
    a, b, c = write("a", "1"), write("b", "2"), write("c", "1")
    fingerprints = [
        TextFiles(*sides).fingerprint()
        for sides in [([a], [b]), ([b], [a]), ([a, b], [b, a]), ([b, a], [a, b])]
    ]
    assert len(set(fingerprints)) == 4
    assert TextFiles([c], [b]).fingerprint() == fingerprints[0]
    write("a", "changed")
    assert TextFiles([a], [b]).fingerprint() != fingerprints[0]


def test_pipe_is_rejected(write, tmp_path):
    """Text is read several times, but a pipe only once. Opening it could block."""
    os.mkfifo(tmp_path / "pipe")
    files = TextFiles(write("a", "x"), tmp_path / "pipe")
    for read in (files.fingerprint, lambda: list(files)):
        with pytest.raises(DataError, match="pipe: must be a regular file, not a pipe"):
            read()
