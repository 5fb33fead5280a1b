r"""Reads lines of text files, with one definition of a line for the whole package.

A line ends at the byte ``\n`` only. ``str.splitlines`` also splits at U+2028, U+0085
and form feeds, which would misalign every later line with its translation.

Every text is opened here. Its first bytes, not its name, decide whether it is
decompressed, or rejected because it is not UTF-8 text.
"""

import bz2
import codecs
import gzip
import hashlib
import io
import logging
import lzma
import os
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from keras_transformer.errors import DataError, install_hint
from keras_transformer.untrusted import open_readable, open_regular

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 16


class _Streams:
    """Text of a file of one or more compressed streams.

    After the first stream, Python's `BZ2File` and `LZMAFile` would take a damaged one,
    or padding before an intact one, for the end of the file.
    """

    def __init__(self, file, decompressor_class):
        self._file, self._class = file, decompressor_class
        self._stream = decompressor_class()

    def read1(self, size):
        while True:
            data = b""
            if self._stream.eof:
                data = self._stream.unused_data.lstrip(b"\0")
                while not data:
                    if not (new := self._file.read1(size)):
                        return b""
                    data = new.lstrip(b"\0")
                self._stream = self._class()
            elif self._stream.needs_input and not (data := self._file.read1(size)):
                raise EOFError
            if text := self._stream.decompress(data, size):
                return text


def _open_zstd(file):
    try:
        from compression import zstd  # in Python 3.14
    except ImportError:
        from backports import zstd
    return zstd.ZstdFile(file)


_BZIP2 = "bzip2", lambda file: _Streams(file, bz2.BZ2Decompressor)
# For each compressed format its first bytes, its name, and a function that opens it.
# The opened files need not seek, and raise `EOFError` if their end is missing.
_COMPRESSED = {
    b"\x1f\x8b": ("gzip", lambda file: gzip.GzipFile(fileobj=file)),
    **{b"BZh%d1AY&SY" % n: _BZIP2 for n in range(1, 10)},
    b"\xfd7zXZ\0": ("xz", lambda file: _Streams(file, lzma.LZMADecompressor)),
    b"\x28\xb5\x2f\xfd": ("zstd", _open_zstd),
}
# Names of other formats by their first bytes.
_BINARY = {
    b"PK\x03\x04": "a zip archive, like .docx and .xlsx",
    b"%PDF-": "a PDF file",
    b"{\\rtf": "an RTF file",
    b"\xd0\xcf\x11\xe0": "a file of an old Microsoft Office",
    b"7z\xbc\xaf": "a 7z archive",
    b"Rar!\x1a\x07": "a RAR archive",
}
_XML = (b"<?xml", b"<!doctype", b"<tmx", b"<xliff", b"<srcset", b"<refset")
# Byte order marks. That of UTF-32 begins with that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
# A superset of Latin-1, apart from control characters.
LATIN_HINT = "If it is Windows-1252, convert it with iconv -f CP1252 -t UTF-8."


def read_lines(
    path: str | os.PathLike, errors: str = "raise", is_xml: bool = False
) -> Iterator[str | None]:
    r"""Yields the lines of a UTF-8 text file, plain or compressed.

    Files of gzip, bzip2, xz and zstd are recognized by their first bytes. A byte order
    mark at the start of the text and one ``\r`` at the end of a line are removed. The
    last line needs no ``\n``.

    Args:
        path: The file.
        errors: Treatment of a line that is not UTF-8. "raise" raises a `DataError`
            that names file and line. "drop" yields `None`, so that line numbers stay
            correct. "replace" replaces invalid bytes with U+FFFD and logs a warning at
            the end.
        is_xml: Whether the file may be XML.

    Raises:
        DataError: If the file is missing, unreadable, a directory, a damaged or
            truncated compressed file, or no UTF-8 text: if it has another format or
            encoding, contains a NUL byte, or ends its lines with ``\r`` only. If
            `errors` is "raise", also if a line is not UTF-8.

    Examples:
        >>> import gzip
        >>> with gzip.open("text.gz", "wt", encoding="utf-8") as file:
        ...     size = file.write("a dog\na cat\n")
        ...
        >>> list(kt.pipelines.read_lines("text.gz"))
        ['a dog', 'a cat']
    """
    with open_readable(path, DataError) as file:
        yield from opened_lines(file, path, errors, is_xml)


def opened_lines(
    file: BinaryIO,
    path: str | os.PathLike,
    errors: str = "raise",
    is_xml: bool = False,
) -> Iterator[str | None]:
    """Like `read_lines`, but reads an open binary file."""
    yield from decode_lines(_raw_lines(file, path, is_xml), path, errors)


def decode_lines(
    lines: Iterable[bytes], name: str | os.PathLike, errors: str = "raise"
) -> Iterator[str | None]:
    """Decodes lines of bytes by the rules of `read_lines`.

    Args:
        lines: Any iterable of lines of bytes.
        name: Name of the text in messages, such as "standard input".
        errors: "raise", "drop" or "replace" (see `read_lines`).

    Returns:
        Iterator over a str per line, or `None` where `errors` is "drop" and the line is
        not UTF-8.

    Raises:
        DataError: If `errors` is "raise" and a line is not UTF-8.
        ValueError: If `errors` has another value.

    Examples:
        >>> lines = [b"a dog\\n", b"\\xff\\n"]
        >>> list(kt.pipelines.decode_lines(lines, "standard input", errors="drop"))
        ['a dog', None]
    """
    if errors not in ("raise", "drop", "replace"):
        raise ValueError(
            "`errors` must be 'raise', 'drop' or 'replace'. "
            f"Received: errors={errors!r}."
        )
    first, count = None, 0
    for number, line in enumerate(lines, start=1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            if errors == "raise":
                raise DataError(
                    f"{name}:{number}: not UTF-8 (byte {line[error.start]:#04x} at "
                    f"position {error.start + 1} of the line). {LATIN_HINT}"
                ) from None
            first, count = first or number, count + 1
            yield line.decode(errors="replace") if errors == "replace" else None
    if count and errors == "replace":
        logger.warning(
            f"{name}: {count:,} line(s) not UTF-8, the first is line {first}; "
            f"unreadable bytes were replaced. {LATIN_HINT}"
        )


def encode_text(text: str | None) -> bytes | None:
    """Returns the text as UTF-8, or `None` if it is `None` or has lone surrogates."""
    try:
        return None if text is None else text.encode()
    except UnicodeEncodeError:
        return None


def count_lines(path: str | os.PathLike) -> int:
    """Counts the lines that `read_lines` would yield, without decoding them."""
    return measure_lines(path)[0]


def measure_lines(path: str | os.PathLike) -> tuple[int, bool]:
    r"""Returns the result of `count_lines`, and whether line 1 ends with ``\r\n``."""
    count, chunk, start, has_crlf = 0, b"\n", b"", None
    with open_regular(path, DataError) as file:
        for chunk, count in text_chunks(file, path):
            if has_crlf is None:
                start = start[-1:] + chunk
                has_crlf = start.partition(b"\n")[0].endswith(b"\r") if count else None
    return count + (not chunk.endswith(b"\n")), bool(has_crlf)


def check_aligned(*paths: str | os.PathLike) -> None:
    """Raises `DataError` unless files have the same number of lines, at least 1."""
    counts = [count_lines(path) for path in paths]
    for path, count in zip(paths, counts, strict=True):
        if not count:
            raise DataError(f"{path}: the file is empty")
        if count != counts[0]:
            raise DataError(
                f"{paths[0]} and {path} must have the same number of lines. Received: "
                f"{counts[0]} and {count}"
            )


def content_hash(path: str | os.PathLike) -> str:
    """Returns the SHA-256 of a file's bytes, in hexadecimal."""
    with open_regular(path, DataError) as file:
        try:
            return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from None


def visible_files(folder: str | os.PathLike) -> list[str]:
    """Returns the paths of a folder's files, including those in its subfolders.

    Hidden files and folders, whose names begin with a dot, are omitted.
    """
    found = []
    for parent, folders, names in os.walk(folder):
        for each in (folders, names):
            each[:] = sorted(name for name in each if not name.startswith("."))
        found += [os.path.join(parent, name) for name in names]
    return found


def _raw_lines(file, path, is_xml) -> Iterator[bytes]:
    r"""Yields the lines of an open binary file without ``\n``."""
    pieces = []  # of the line that the next chunk continues
    for chunk, _ in text_chunks(file, path, is_xml):
        *complete, last = chunk.split(b"\n")
        if complete:
            yield b"".join([*pieces, complete[0]])
            yield from complete[1:]
            pieces = []
        pieces.append(last)
    if last := b"".join(pieces):
        yield last


def text_chunks(
    file: BinaryIO, path: str | os.PathLike, is_xml: bool = False
) -> Iterator[tuple[bytes, int]]:
    """Yields the bytes of an open text file in chunks, decompressed and checked.

    With each chunk comes the number of line ends from the start of the file to the end
    of the chunk. Damaged files, and files that are no text, are rejected.
    """
    if not hasattr(file, "peek"):
        file = io.BufferedReader(file)
    kind, lines, returns, chunk = None, 0, 0, None
    try:
        kind, stream = _decompress(file, path)
        # A pipe gives what it has, so that typed lines are answered at once.
        while new := stream.read1(_CHUNK_BYTES):
            if chunk is None:
                _check_start(new, path, is_xml)
            chunk = new
            if b"\0" in chunk:
                lines += chunk[: chunk.index(b"\0")].count(b"\n")
                raise DataError(
                    f"{path}:{lines + 1}: must be a text, but contains a NUL byte, as "
                    r"binary files do. tr -d '\000' removes such bytes"
                )
            lines += chunk.count(b"\n")
            if not lines:
                returns += chunk.count(b"\r")
            yield chunk, lines
    except DataError:
        raise
    # Each library has its own class of errors for damaged files.
    except Exception as error:
        reason = getattr(error, "strerror", None)
        if isinstance(error, EOFError):
            problem = f"the {kind} file is truncated"
        elif kind is not None and reason is None:
            problem = f"not a valid {kind} file"
        elif isinstance(error, OSError):
            problem = f"cannot be read ({reason or error})"
        else:
            raise
        raise DataError(f"{path}: {problem}, after line {lines}") from None
    if not lines and returns > (chunk or b"").endswith(b"\r"):
        raise DataError(
            rf"{path}: lines must end with \n, but the text has only \r. Convert it "
            r"with tr '\r' '\n'"
        )


def _decompress(file, path):
    """Returns the name of the compression, or `None`, and a file to read from."""
    start = file.peek(16)
    for magic, (kind, open_stream) in _COMPRESSED.items():
        if start.startswith(magic):
            try:
                return kind, open_stream(file)
            except ImportError:
                raise DataError(
                    f"{path}: {kind} needs another package: {install_hint(kind)}"
                ) from None
    return None, file


def _check_start(chunk: bytes, path, is_xml) -> None:
    """Raises `DataError` if the first bytes are those of another format or encoding."""
    name = next((_BINARY[magic] for magic in _BINARY if chunk.startswith(magic)), None)
    if chunk[257:262] == b"ustar":
        name = "a tar archive"
    if name is not None:
        raise DataError(f"{path}: must be a text. Received: {name}")
    encoding = _wide_encoding(chunk)
    if encoding is not None:
        raise DataError(
            f"{path}: the text is {encoding}. Convert it with iconv -f {encoding} -t "
            "UTF-8"
        )
    start = chunk.removeprefix(codecs.BOM_UTF8)[:99].lstrip()
    if start.lower().startswith(_XML) and not is_xml:
        is_tmx = b"tmx" in start.lower()
        name = "TMX (for training, data.kind: tmx)" if is_tmx else "XML or HTML"
        raise DataError(
            f"{path}: must be a text with one sentence per line. Received: {name}"
        )


def _wide_encoding(chunk: bytes) -> str | None:
    """Returns the encoding of a text in UTF-16 or UTF-32, else `None`."""
    for mark, encoding in _MARKS.items():
        if chunk.startswith(mark):
            return encoding
    if b"\0" not in chunk:
        return None
    for encoding in ("UTF-32LE", "UTF-32BE", "UTF-16LE", "UTF-16BE"):
        decoder = codecs.getincrementaldecoder(encoding)()
        try:
            text = decoder.decode(chunk[:4096])
        except UnicodeDecodeError:
            continue
        # In a wrong encoding, spaces and line ends are other characters.
        if {" ", "\n"} & {*text} and min(text) >= "\t":
            return encoding
    return None
