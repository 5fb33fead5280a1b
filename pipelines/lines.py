r"""Reads lines of text files, with one definition of a line for the whole package.

A line ends at the byte ``\n`` only. ``str.splitlines`` also splits at U+2028, U+0085
and form feeds, which would misalign every later line with its translation.
"""

import codecs
import gzip
import hashlib
import os
import stat
import zlib
from collections.abc import Iterable
from collections.abc import Iterator
from typing import BinaryIO

from keras_transformer.errors import DataError

_CHUNK_BYTES = 1 << 20


def read_lines(path: str | os.PathLike, errors: str = "raise") -> Iterator[str | None]:
    r"""Yields the lines of a UTF-8 text file, decompressed if its name ends in ``.gz``.

    A byte order mark at the start of the file and one ``\r`` at the end of a line are
    removed. The last line needs no ``\n``.

    Args:
        path: The file.
        errors: Treatment of a line that is not UTF-8. "raise" raises a `DataError`
            that names file and line. "drop" yields `None`, so that line numbers stay
            correct. "replace" replaces invalid bytes with U+FFFD.

    Raises:
        DataError: If the file is missing, unreadable, a directory, UTF-16, or a damaged
            or truncated gzip file, or if `errors` is "raise" and a line is not UTF-8.
    """
    with _open_file(path) as file:
        yield from opened_lines(file, path, errors)


def raw_lines(path: str | os.PathLike) -> Iterator[bytes]:
    """Like `read_lines`, but yields the undecoded bytes, including line ends."""
    with _open_file(path) as file:
        yield from _guard(_decompress(file, path), path, are_lines=True)


def opened_lines(
    file: BinaryIO, path: str | os.PathLike, errors: str = "raise"
) -> Iterator[str | None]:
    """Like `read_lines`, but reads an open binary file."""
    lines = _guard(_decompress(file, path), path, are_lines=True)
    yield from decode_lines(lines, path, errors)


def decode_lines(
    lines: Iterable[bytes], name: str | os.PathLike, errors: str = "raise"
) -> Iterator[str | None]:
    """Decodes lines of bytes by the rules of `read_lines`.

    Args:
        lines: An open binary file or any iterable of lines of bytes.
        name: Name of the text in messages, such as "standard input".
        errors: "raise", "drop" or "replace" (see `read_lines`).

    Raises:
        ValueError: If `errors` is unknown.
        DataError: If `errors` is "raise" and a line is not UTF-8, or if the text begins
            with the byte order mark of UTF-16.
    """
    if errors not in ("raise", "drop", "replace"):
        raise ValueError(
            "`errors` must be 'raise', 'drop' or 'replace'. "
            f"Received: errors={errors!r}."
        )
    for number, line in enumerate(lines, start=1):
        if number == 1:
            _refuse_utf16(line, name)
            line = line.removeprefix(codecs.BOM_UTF8)
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


def _refuse_utf16(start: bytes, name: str | os.PathLike) -> None:
    """Checks the start of a text: most lines of UTF-16 are valid, but wrong, UTF-8."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(
            f"{name}: the text is UTF-16. Convert it with iconv -f UTF-16 -t UTF-8."
        )


def count_lines(path: str | os.PathLike) -> int:
    """Counts the lines that `read_lines` would yield, without decoding them.

    Raises:
        DataError: If the file cannot be read, is UTF-16, or is a pipe or device, which
            may not be readable a second time.
    """
    count = 0
    chunk = b""
    with _open_regular(path) as file:
        try:
            chunks = _guard(_read_chunks(_decompress(file, path)), path)
            for number, chunk in enumerate(chunks):
                if number == 0:
                    _refuse_utf16(chunk, path)
                count += chunk.count(b"\n")
        except DataError:
            # Reading by lines fails again, with the number of the last intact line.
            for _ in raw_lines(path):
                pass
            raise
    return count + (not chunk.endswith(b"\n") and chunk != b"")


def content_hash(path: str | os.PathLike) -> str:
    """Returns the SHA-256 of a file's bytes, in hexadecimal.

    Raises:
        DataError: If the file cannot be read, or is a pipe or device.
    """
    digest = hashlib.sha256()
    with _open_regular(path) as file:
        for chunk in _guard(_read_chunks(file), path):
            digest.update(chunk)
    return digest.hexdigest()


def visible_files(folder: str | os.PathLike) -> list[str]:
    """Returns the paths of a folder's files, including those in its subfolders.

    Hidden files and folders, whose names begin with a dot, are omitted.
    """
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [
            os.path.join(parent, name)
            for name in sorted(names)
            if not name.startswith(".")
        ]
    return found


def _open_regular(path: str | os.PathLike):
    """Opens a file that can be read repeatedly. Pipes and devices are rejected."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return _open_file(path)
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DataError(f"{path}: must be a regular file, not a pipe or device.")
    return _open_file(path)


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
        # The name contains a NUL or a lone surrogate.
        raise DataError(f"{os.fspath(path)!r}: not a file name.") from None


def _decompress(file, path):
    if os.fspath(path).endswith(".gz"):
        return gzip.GzipFile(fileobj=file, mode="rb")
    return file


def _read_chunks(file) -> Iterator[bytes]:
    return iter(lambda: file.read(_CHUNK_BYTES), b"")


def _guard(
    parts: Iterable[bytes], path: str | os.PathLike, are_lines: bool = False
) -> Iterator[bytes]:
    """Yields the parts and converts read errors to a `DataError`.

    If the parts are lines, the message contains the number of the last intact line.
    """
    lines = 0
    parts = iter(parts)
    while True:
        try:
            part = next(parts)
        except StopIteration:
            return
        except EOFError:
            problem = "the gzip file is truncated"
        except (gzip.BadGzipFile, zlib.error):
            problem = "not a valid gzip file"
        except OSError as error:
            problem = f"cannot be read ({error.strerror or error})"
        else:
            lines += part.count(b"\n")
            yield part
            continue
        place = f", after line {lines}" if are_lines else ""
        raise DataError(f"{path}: {problem}{place}.") from None
