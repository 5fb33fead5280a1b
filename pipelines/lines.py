"""One definition of a line, for every file that the package reads.

A line ends at the byte ``\n`` and nowhere else: ``str.splitlines`` also cuts at
U+2028, U+0085 or a form feed, which moves every later line against its translation.
"""

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterable
from collections.abc import Iterator
from typing import BinaryIO

from keras_transformer.errors import DataError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLOCK_BYTES = 1 << 20


def read_lines(path: str | os.PathLike, errors: str = "raise") -> Iterator[str | None]:
    r"""Yield the lines of a UTF-8 text file, plain or gzip (by the name ``.gz``).

    Lines are split at ``\n`` only; a byte order mark at the start of the file and
    one ``\r`` at the end of a line are taken off; the last line needs no ``\n``.

    Args:
        path: the file.
        errors: what to do with a line that is not UTF-8: "raise" a `DataError`
            naming file and line, "drop" it by yielding None in its place (so that
            line numbers stay true), or "replace" the bad bytes with U+FFFD.

    Raises:
        DataError: the file is missing, unreadable, a directory, a broken or
            truncated gzip, or (with "raise") holds a line that is not UTF-8.
    """
    with _open_file(path) as file:
        yield from opened_lines(file, path, errors)


def raw_lines(path: str | os.PathLike) -> Iterator[bytes]:
    """Yield the lines of `read_lines` as bytes, their ends included; reads once."""
    with _open_file(path) as file:
        yield from _unpacked(file, path)


def opened_lines(
    file: BinaryIO, path: str | os.PathLike, errors: str = "raise"
) -> Iterator[str | None]:
    """Yield the lines of an open file; all else is as in `read_lines`."""
    yield from decode_lines(_unpacked(file, path), path, errors)


def decode_lines(
    lines: Iterable[bytes], name: str | os.PathLike, errors: str = "raise"
) -> Iterator[str | None]:
    """Decode lines of bytes by the rules of `read_lines`.

    Args:
        lines: an open binary file, or any iterable of lines of bytes.
        name: what messages call it, such as "standard input".
        errors: as in `read_lines`.
    """
    if errors not in ("raise", "drop", "replace"):
        raise ValueError(
            "`errors` must be 'raise', 'drop' or 'replace'. "
            f"Received: errors={errors!r}."
        )
    for number, line in enumerate(lines, start=1):
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        try:
            yield line.decode("utf-8", "replace" if errors == "replace" else "strict")
        except UnicodeDecodeError as error:
            if errors == "raise":
                raise DataError(
                    f"{name}:{number}: not UTF-8 (byte {line[error.start]:#04x} at "
                    f"position {error.start + 1} of the line)."
                ) from None
            yield None


def count_lines(path: str | os.PathLike) -> int:
    """Count the lines that `read_lines` would yield, without decoding them."""
    count = 0
    block = b""
    with _open_lines_file(path) as file:
        for block in _guarded(iter(lambda: file.read(_BLOCK_BYTES), b""), path):
            count += block.count(b"\n")
    return count + (not block.endswith(b"\n") and block != b"")


def content_hash(path: str | os.PathLike) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with _open_file(path) as file:
        for block in _guarded(iter(lambda: file.read(_BLOCK_BYTES), b""), path):
            digest.update(block)
    return digest.hexdigest()


def _open_lines_file(path: str | os.PathLike):
    file = _open_file(path)
    return _GzipFile(file) if os.fspath(path).endswith(".gz") else file


def _open_file(path: str | os.PathLike):
    try:
        return open(path, "rb")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file.") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a directory, not a text file.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    except ValueError:
        # NUL, or half a surrogate pair.
        raise DataError(f"{os.fspath(path)!r}: no name of a file.") from None


def _unpacked(file, path):
    if os.fspath(path).endswith(".gz"):
        file = gzip.GzipFile(fileobj=file, mode="rb")
    return _guarded(file, path)


class _GzipFile(gzip.GzipFile):
    """A gzip reader that also closes the file below it."""

    def __init__(self, file):
        super().__init__(fileobj=file, mode="rb")
        self._file = file

    def close(self):
        super().close()
        self._file.close()


def _guarded(parts: Iterable[bytes], path: str | os.PathLike) -> Iterator[bytes]:
    """Yield the parts, turning a failing read into a DataError naming the place."""
    lines = 0
    parts = iter(parts)
    while True:
        try:
            part = next(parts)
        except StopIteration:
            return
        except EOFError:
            problem = "the gzip file is cut off"
        except (gzip.BadGzipFile, zlib.error):
            problem = "not a valid gzip file"
        except OSError as error:
            problem = f"cannot be read ({error.strerror or error})"
        else:
            lines += part.count(b"\n")
            yield part
            continue
        raise DataError(f"{path}: {problem}, after line {lines}.") from None
