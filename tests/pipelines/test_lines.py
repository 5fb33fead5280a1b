"""`read_lines`: line ends, UTF-8, gzip, and damaged files.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import gzip
import random

import pytest

from keras_transformer.errors import DataError
from keras_transformer.pipelines import decode_lines
from keras_transformer.pipelines import read_lines
from keras_transformer.pipelines.lines import count_lines

# Each text is one line, because only \n ends a line.
ODD_LINES = ["a\u2028b", "c\x0bd\x0ce", "f\x85g", "h\ri", "\x1cj\x1dk\x1e", "", " l "]


def write(path, content: bytes):
    if path.name.endswith(".gz"):
        content = gzip.compress(content)
    path.write_bytes(content)
    return path


@pytest.mark.fault("F15", "only \\n ends a line")
@pytest.mark.parametrize("name", ["text.txt", "text.gz"])
def test_only_newline_ends_a_line(tmp_path, name):
    path = write(tmp_path / name, "\n".join(ODD_LINES).encode())
    assert list(read_lines(path)) == ODD_LINES
    assert count_lines(path) == len(ODD_LINES)


@pytest.mark.fault("F15", "one CR at the end of a line is removed")
def test_one_trailing_carriage_return_is_removed(tmp_path):
    path = write(tmp_path / "dos.txt", b"\ra\r\nb\rc\r\r\nd\r")
    assert list(read_lines(path)) == ["\ra", "b\rc\r", "d"]


@pytest.mark.fault("F15", "one BOM at the start is removed")
def test_byte_order_mark_is_removed_at_file_start(tmp_path):
    path = write(tmp_path / "bom.txt", "\ufeff\ufeffa\n\ufeffb\n".encode())
    assert list(read_lines(path)) == ["\ufeffa", "\ufeffb"]


@pytest.mark.fault("F15", "a last line without a newline is read")
@pytest.mark.parametrize(
    ("content", "lines"),
    [(b"", []), (b"\n", [""]), (b"a", ["a"]), (b"a\n", ["a"]), (b"a\n\n", ["a", ""])],
)
def test_last_line_needs_no_newline(tmp_path, content, lines):
    for name in ("text.txt", "text.gz"):
        path = write(tmp_path / name, content)
        assert list(read_lines(path)) == lines
        assert count_lines(path) == len(lines)


def test_long_lines_are_complete(tmp_path):
    long = "x" * (3 << 20)
    path = write(tmp_path / "long.txt", f"{long}\n{long}y".encode())
    assert list(read_lines(path)) == [long, long + "y"]
    assert count_lines(path) == 2


@pytest.mark.fault("F16", "reported, dropped or replaced, depending on the option")
def test_invalid_utf8_is_reported_dropped_or_replaced(tmp_path):
    path = write(tmp_path / "latin.gz", b"ok\nna\xefve\ntrunc\xe2\x82\nlast")
    with pytest.raises(DataError, match=r"latin\.gz:2: not UTF-8 \(byte 0xef at .* 3 "):
        list(read_lines(path))
    assert list(read_lines(path, errors="drop")) == ["ok", None, None, "last"]
    replaced = ["ok", "na\ufffdve", "trunc\ufffd", "last"]
    assert list(read_lines(path, errors="replace")) == replaced


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("errors", ["raise", "drop", "replace"])
def test_utf16_is_reported_however_errors_are_treated(tmp_path, encoding, errors):
    """After the first line, ASCII in UTF-16 is valid UTF-8 with NULs."""
    path = write(tmp_path / "a.txt", "\ufeffa man\na dog\n".encode(encoding))
    with pytest.raises(DataError, match=r"a\.txt: the text is UTF-16\. Convert it"):
        list(read_lines(path, errors=errors))
    with pytest.raises(DataError, match="the text is UTF-16"):
        count_lines(path)


def test_decode_lines_names_stream():
    with pytest.raises(DataError, match=r"^standard input:3: not UTF-8"):
        list(decode_lines([b"a\n", b"b\n", b"\xff\n"], "standard input"))
    with pytest.raises(ValueError, match="errors='ignore'"):
        list(decode_lines([], "standard input", errors="ignore"))


@pytest.mark.fault("F20", "an error that names the file and the last good line")
def test_truncated_gzip_fails_after_good_lines(tmp_path):
    whole = gzip.compress("".join(f"line {n}\n" for n in range(100_003)).encode())
    path = tmp_path / "cut.gz"
    path.write_bytes(whole[: len(whole) // 2])
    lines = read_lines(path)
    assert [next(lines) for _ in range(3)] == ["line 0", "line 1", "line 2"]
    read = 3
    with pytest.raises(DataError, match="truncated") as error:
        for _ in lines:
            read += 1
    message = f"{path}: the gzip file is truncated, after line {read}."
    assert str(error.value) == message
    with pytest.raises(DataError) as error:
        count_lines(path)
    assert str(error.value) == message
    path.write_bytes(whole[:-3])
    with pytest.raises(DataError, match=r"truncated, after line 100003\."):
        list(read_lines(path))


@pytest.mark.fault("F20", "an error that names the file, or unchanged lines")
def test_altered_gzip_never_changes_text(tmp_path):
    content = "".join(f"Zeile {n} läuft {n * n}\n" for n in range(900)).encode()
    whole = gzip.compress(content)
    expected = content.decode().split("\n")[:-1]
    path = tmp_path / "a.gz"
    draw = random.Random(1)
    errors = 0
    # 300 truncated, changed or extended files, each of them read twice.
    for number in range(300):
        changed = bytearray(whole)
        if number % 3 == 0:
            changed = changed[: draw.randrange(len(changed))]
        elif number % 3 == 1:
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        else:
            changed += draw.randbytes(draw.randint(1, 30))
        path.write_bytes(bytes(changed))
        for reader in (lambda: list(read_lines(path)), lambda: count_lines(path)):
            try:
                found = reader()
            except DataError as error:
                assert str(error).startswith(f"{path}:")
                errors += 1
            else:
                # An empty file has no gzip member, so it is read as empty text.
                if changed:
                    assert found in (expected, len(expected))
    assert errors > 500
    path.write_bytes(b"\x1f\x8b")
    with pytest.raises(DataError, match=r"a\.gz: the gzip file is truncated"):
        list(read_lines(path))


@pytest.mark.fault("F20", "an error that names the file and the reason")
def test_unreadable_files_are_rejected(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "folder.gz").mkdir()
    fake = tmp_path / "fake.gz"
    fake.write_bytes(b"not compressed\n")
    damaged = bytearray(gzip.compress(b"abc\n" * 999))
    damaged[-6] ^= 1
    (tmp_path / "damaged.gz").write_bytes(damaged)
    for name, problem in {
        "folder": "is a directory",
        "folder.gz": "is a directory",
        "missing": "no such file",
        "missing.gz": "no such file",
        "fake.gz": "not a valid gzip file",
        "damaged.gz": "not a valid gzip file",
    }.items():
        for read in (lambda path: list(read_lines(path)), count_lines):
            with pytest.raises(DataError, match=f"{name}: {problem}"):
                read(tmp_path / name)
