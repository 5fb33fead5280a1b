"""`read_lines`: line ends, UTF-8, gzip, and damaged files.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import bz2
import gzip
import io
import lzma
import os
import random
import sys
import tarfile
import zipfile

import pytest

from keras_transformer.errors import DataError
from keras_transformer.pipelines import decode_lines, read_lines
from keras_transformer.pipelines.lines import count_lines, opened_lines

# Each text is one line, because only \n ends a line.
ODD_LINES = ["a\u2028b", "c\x0bd\x0ce", "f\x85g", "h\ri", "\x1cj\x1dk\x1e", "", " l "]


def write(path, content: bytes):
    if path.name.endswith(".gz"):
        content = gzip.compress(content)
    path.write_bytes(content)
    return path


@pytest.mark.fault(
    "F15",
    "only \\n ends a line; one CR at its end and one BOM at the start are removed",
)
@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("\n".join(ODD_LINES), ODD_LINES),
        ("\ra\r\nb\rc\r\r\nd\r", ["\ra", "b\rc\r", "d"]),
        ("\ufeff\ufeffa\n\ufeffb\n", ["\ufeffa", "\ufeffb"]),
        *(("", []), ("\n", [""]), ("a", ["a"]), ("a\n", ["a"]), ("a\n\n", ["a", ""])),
    ],
)
@pytest.mark.parametrize("name", ["text.txt", "text.gz"])
def test_only_newline_ends_a_line(tmp_path, name, content, lines):
    path = write(tmp_path / name, content.encode())
    assert list(read_lines(path)) == lines
    assert count_lines(path) == len(lines)


@pytest.mark.fault("F16", "reported, dropped or replaced, depending on the option")
def test_invalid_utf8_is_reported_dropped_or_replaced(tmp_path):
    path = write(tmp_path / "latin.gz", b"ok\nna\xefve\ntrunc\xe2\x82\nlast")
    with pytest.raises(DataError, match=r"latin\.gz:2: not UTF-8 \(byte 0xef at .* 3 "):
        list(read_lines(path))
    assert list(read_lines(path, errors="drop")) == ["ok", None, None, "last"]
    replaced = ["ok", "na\ufffdve", "trunc\ufffd", "last"]
    assert list(read_lines(path, errors="replace")) == replaced


def packed(pack):
    """Returns the bytes of an archive with one text, which `pack(stream)` writes."""
    stream = io.BytesIO()
    pack(stream)
    return stream.getvalue()


def pack_zip(stream):
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")


def pack_tar(stream):
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))


def stored_zstd(text):
    """Returns a zstd file with the content in one block that is not compressed.

    The frame has a size of one byte; the header of the block contains its size in bits
    3 to 23 and marks the last block in bit 0 (RFC 8878).
    """
    block = (len(text) << 3 | 1).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd\x20" + bytes([len(text)]) + block + text


TEXT = "Ein Hund läuft.\n\nZwei Hunde\u2028laufen.\n".encode()
LINES = ["Ein Hund läuft.", "", "Zwei Hunde\u2028laufen."]
COMPRESSED = {
    "gzip": gzip.compress(TEXT),
    "bzip2": bz2.compress(TEXT),
    "xz": lzma.compress(TEXT),
    "two bzip2": bz2.compress(TEXT[:9]) + bz2.compress(TEXT[9:]),
    "padded xz": lzma.compress(TEXT[:9]) + bytes(4) + lzma.compress(TEXT[9:]),
    "plain": TEXT,
    "zstd": stored_zstd(TEXT),
}


def skip_without_zstd(kind):
    if kind == "zstd" and sys.version_info < (3, 14):
        pytest.importorskip("backports.zstd", reason="backports.zstd not installed")


@pytest.mark.parametrize("name", ["text", "text.gz", "TEXT.XZ"])
@pytest.mark.parametrize("kind", COMPRESSED)
def test_first_bytes_decide_how_a_file_is_read(tmp_path, kind, name):
    skip_without_zstd(kind)
    path = tmp_path / name
    path.write_bytes(COMPRESSED[kind])
    assert list(read_lines(path)) == LINES
    assert count_lines(path) == 3
    # A pipe cannot be rewound.
    reader, writer = os.pipe()
    with open(writer, "wb") as file:
        file.write(COMPRESSED[kind])
    with open(reader, "rb") as file:
        assert list(opened_lines(file, "pipe")) == LINES
    assert list(opened_lines(io.BytesIO(COMPRESSED[kind]), "memory")) == LINES


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz", "zstd"])
def test_a_damaged_file_of_any_format_is_rejected(tmp_path, kind):
    skip_without_zstd(kind)
    path, whole = tmp_path / "damaged", COMPRESSED[kind]
    path.write_bytes(whole[:-5])
    with pytest.raises(DataError, match=f"the {kind} file is truncated, after line "):
        list(read_lines(path))
    at = 10 if kind == "bzip2" else 6  # after the bytes that name the format
    path.write_bytes(whole[:at] + b"\xff" * 9 + whole[at + 9 :])
    with pytest.raises(DataError, match=f"not a valid {kind} file, after line 0"):
        count_lines(path)
    if kind != "zstd":  # the second of three streams is damaged
        damaged = whole[:-9] + bytes([whole[-9] ^ 4]) + whole[-8:]
        path.write_bytes(whole + damaged + whole)
        with pytest.raises(DataError, match=f"not a valid {kind} file"):
            list(read_lines(path))


def test_zstd_without_its_package_names_the_command(tmp_path, monkeypatch):
    for module in ("backports", "compression"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "a").write_bytes(COMPRESSED["zstd"])
    with pytest.raises(DataError, match=r'a: zstd .*pip install "\.\[zstd\]"'):
        count_lines(tmp_path / "a")


NO_TEXT = {
    "docx": (packed(pack_zip), "must be a text. Received: a zip archive"),
    "tar": (packed(pack_tar), "must be a text. Received: a tar archive"),
    "pdf": (b"%PDF-1.7\n%\xe2\xe3\n", "must be a text. Received: a PDF file"),
    "png": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "must be a text.*NUL byte, as binary"),
    "late": (b"a\n" * 99_999 + b"b\0\n", r"100000: must be a text.*tr -d '\\000'"),
    "mac": (b"Ein Hund\rZwei\r", r"lines must end with \\n.*tr '\\r' '\\n'"),
    "tmx": (b'\xef\xbb\xbf<?xml version="1.0"?>\n<tmx>\n', "Received: TMX"),
    "sgm": (b'\n<refset trglang="de">\n', "Received: XML or HTML"),
    "html": (b"<!DOCTYPE html>\n<p>\n", "Received: XML or HTML"),
}
for encoding in ("UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE"):
    for text in (
        "a man\na dog\n",
        "\u4e00\u4e8c\n\u4e09\n",
        "\u0434\u0430 \U0001f600\n",
    ):
        for mark, name in {"": encoding, "\ufeff": encoding[:6]}.items():
            NO_TEXT[f"{encoding} {mark}{text}"] = (
                (mark + text).encode(encoding),
                rf"the text is {name}\. Convert it with iconv -f {name} -t UTF-8$",
            )


@pytest.mark.parametrize("kind", NO_TEXT)
def test_files_without_utf8_text_are_rejected(tmp_path, kind):
    """However lines that are not UTF-8 are treated."""
    content, message = NO_TEXT[kind]
    for name, each in {"a": content, "a.gz": gzip.compress(content)}.items():
        (tmp_path / name).write_bytes(each)
        with pytest.raises(DataError, match=f"{name}:.*{message}") as error:
            list(read_lines(tmp_path / name, errors="replace"))
        with pytest.raises(DataError) as other:
            count_lines(tmp_path / name)
        assert str(other.value) == str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        *("a\rb\n", "a\r", "<b>a</b>\n", "PK\n", "\x01\n", "%PDF\n", "BZh9 flies.\n"),
        *("Rar! said he.\n", "PAR1S\n", "<html>Save <b>all</b></html>\n"),
    ],
)
def test_unusual_texts_are_not_rejected(tmp_path, text):
    (tmp_path / "a").write_bytes(text.encode())
    expected = [text.removesuffix("\n").removesuffix("\r")]
    assert list(read_lines(tmp_path / "a")) == expected


def test_one_warning_summarizes_replaced_lines(tmp_path, caplog):
    path = write(tmp_path / "latin", "Hund\nläuft\n".encode("latin-1") * 500)
    assert list(read_lines(path, errors="replace")) == ["Hund", "l\ufffduft"] * 500
    assert caplog.messages == [
        f"{path}: 500 line(s) not UTF-8, the first is line 2; unreadable bytes were "
        "replaced. If it is Windows-1252, convert it with iconv -f CP1252 -t UTF-8."
    ]


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
    message = f"{path}: the gzip file is truncated, after line {read}"
    assert str(error.value) == message
    with pytest.raises(DataError) as error:
        count_lines(path)
    assert str(error.value) == message
    path.write_bytes(whole[:-3])
    with pytest.raises(DataError, match=r"truncated, after line 100003$"):
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
    (tmp_path / "folder").mkdir()
    for name, problem in {
        "folder": "must be a file, not a folder",
        "missing": "no such file",
        "missing.gz": "no such file",
    }.items():
        for read in (lambda path: list(read_lines(path)), count_lines):
            with pytest.raises(DataError, match=f"{name}: {problem}"):
                read(tmp_path / name)
