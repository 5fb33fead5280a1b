"""Reading of untrusted files: each failure is one line that names the file and key.

`fault_table.py` explains the marker `fault`.
"""

import json
import os
import socket
import sys

import pytest
from pydantic import BaseModel, PositiveInt

from keras_transformer import untrusted
from keras_transformer.errors import DataError, UserError


class Schema(BaseModel):
    size: PositiveInt
    ratio: float | None = None
    names: list[str] = []


def refusal(content):
    """Returns the error message for `content`, which must be one printable line."""
    with pytest.raises(DataError) as caught:
        untrusted.parse_json(content, Schema, "FILE", DataError)
    message = str(caught.value)
    assert message.startswith("FILE: ") and message.isprintable()
    assert len(message) < 300
    return message


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "cannot be read"),
        ("[1, 2]", "the content is wrong"),
        ('{"a": 1}', "'size' is wrong: Field required"),
        ('{"size": -1}', "'size' is wrong"),
        ('{"size": true}', "'size' is wrong"),
        ('{"size": "1"}', "'size' is wrong"),
        ('{"size": 1.5}', "'size' is wrong"),
        ('{"size": 1e999}', "'1e999' is not finite"),
        ('{"size": 1, "ratio": NaN}', "'NaN' is not finite"),
        ('{"size": 1, "ratio": -Infinity}', "'-Infinity' is not finite"),
        ('{"size": 1' + "0" * 30 + "}", "Received: 1e+30"),
        ('{"size": 1, "unknown": 1' + "0" * 400 + "}", "is too large"),
        ('{"size": 1, "names": [1]}', "'names.0' is wrong"),
        ('{"size": "\\u001b[31m"}', r"Received: '\x1b[31m'"),
        ('{"size": "\\ud800"}', r"Received: '\ud800'"),
        ("[" * 100_000, "nested too deeply"),
        ("[" * 40 + "]" * 40, "nested too deeply"),
        (b'{"size": \xff}', "cannot be read"),
        (b'{"size": \x1b}', "cannot be read"),
    ],
)
def test_parse_json_names_the_key(content, reason):
    assert reason in refusal(content)


def test_parse_json_returns_a_value_of_the_schema():
    found = untrusted.parse_json('{"size": 2, "ratio": 1, "x": 3}', Schema, "FILE")
    assert found == Schema(size=2, ratio=1.0)
    number = untrusted.parse_json("1e999", float, "FILE", finite=False)
    assert number == float("inf")


@pytest.fixture
def special_files(tmp_path):
    """Paths that are not regular files, with text of the expected error."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "socket"))
    yield {
        tmp_path / "pipe": "must be a regular file",
        tmp_path / "link": "must be a regular file",
        tmp_path / "socket": "must be a regular file",
        "/dev/zero": "must be a regular file",
        tmp_path / "folder": "must be a file, not a folder",
        tmp_path / "missing": "no such file",
        tmp_path / "loop": "Too many levels",
        tmp_path / "a\0b": "not a file name",
    }
    server.close()


@pytest.mark.timeout(20)
@pytest.mark.fault("F23", "pipes, devices and sockets are rejected and never read")
def test_special_files_are_refused_without_waiting(special_files):
    for path, reason in special_files.items():
        with pytest.raises(DataError, match=reason) as caught:
            untrusted.read_bytes(path, 10, DataError)
        assert repr(os.fspath(path))[1:-1] in str(caught.value)
    folder, pipe = (
        next(path for path in special_files if str(path).endswith(name))
        for name in ("folder", "pipe")
    )
    untrusted.require_regular([folder])
    with pytest.raises(UserError, match="pipe: must be a regular file"):
        untrusted.require_regular([folder, pipe])


def test_read_bytes_limits_the_size(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert untrusted.read_bytes(path, 5) == b"12345"
    with pytest.raises(UserError, match=r"file: must have at most 4 bytes"):
        untrusted.read_bytes(path, 4)


def test_read_text_names_the_invalid_byte(tmp_path):
    path = tmp_path / "file"
    path.write_bytes("ä".encode() + b"\xe4")
    with pytest.raises(UserError, match=r"file: not UTF-8 \(byte 0xe4 at position 3\)"):
        untrusted.read_text(path)


def test_read_json_lines_skips_only_a_partial_last_line(tmp_path):
    path = tmp_path / "file"
    rows = [b'{"size": 1}', b'{"size": 2}']
    for end in (b"", b"\n", b'\n{"si', b"\n\0\0\0", b"\n" + b"[" * 100_000):
        path.write_bytes(b"\n".join(rows) + end)
        found = untrusted.read_json_lines(path, Schema)
        assert found == [(row, Schema(**json.loads(row))) for row in rows]
    for damage in (b"[1]", b"\xff", b'{"si', b'{"size": 1e999}', b""):
        path.write_bytes(b"\n".join([rows[0], damage, rows[1]]))
        with pytest.raises(UserError, match=r"file:2: "):
            untrusted.read_json_lines(path, Schema)
    path.write_bytes(b'{"size": 1}\n{"size": 0}')
    with pytest.raises(UserError, match=r"file:2: 'size' is wrong"):
        untrusted.read_json_lines(path, Schema)
    path.write_bytes(b"")
    assert untrusted.read_json_lines(path, Schema) == []


def test_escape_controls_leaves_printable_text_only():
    kept = "ä 漢字 \\x1b 'quoted' | 😀 \u00a0 \u3000"
    assert untrusted.escape_controls(kept) == kept
    assert untrusted.escape_controls("\x1b[31m\x9b\n\u202e") == r"\x1b[31m\x9b\n\u202e"
    for code in range(sys.maxunicode + 1):
        text = untrusted.escape_controls(chr(code))
        assert text.isprintable() or text.isspace()
        text.encode("utf-8")  # no lone surrogates
    assert "\n" not in untrusted.escape_controls("\n\r\v\f\x1c\x85\u2028\u2029")
