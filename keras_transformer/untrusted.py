"""Readers of small untrusted files, and functions that quote their content.

Files next to a model, such as its model card or its metrics, may come from anywhere.
They must be regular files of limited size. JSON must have limited depth, finite
numbers, and the keys and types of a schema. Each error message is one line that names
the file and, for JSON, the key.
"""

import errno
import functools
import json
import math
import os
import stat
import unicodedata

from keras_transformer.errors import UserError

MAX_JSON_BYTES = 1 << 20
MAX_LOG_BYTES = 64 << 20
_MAX_DEPTH = 32
_NOT_REGULAR = "must be a regular file, not a pipe or device"


def open_readable(path, error=UserError, opener=None):
    """Opens a file or pipe for reading in binary mode."""
    try:
        return open(path, "rb", opener=opener)
    except IsADirectoryError:
        raise error(f"{path}: must be a file, not a folder") from None
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None
    except OSError as reason:
        # Opening a socket or a missing device fails with one of these error numbers.
        is_special = reason.errno in (errno.ENXIO, errno.ENODEV)
        text = _NOT_REGULAR if is_special else reason.strerror
        raise error(f"{path}: {text}") from None
    except ValueError:
        # The name contains a NUL or a lone surrogate.
        raise error(f"{os.fspath(path)!r}: not a file name") from None


def open_regular(path, error=UserError):
    """Like `open_readable`, but rejects pipes and devices, which might never end."""
    # Without O_NONBLOCK, opening a pipe waits for its writer.
    file = open_readable(
        path, error, lambda path, flags: os.open(path, flags | os.O_NONBLOCK)
    )
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise error(f"{path}: {_NOT_REGULAR}")
    return file


def require_regular(paths, error=UserError):
    """Checks that paths are regular files or folders before a library opens them."""
    for path in paths:
        if not os.path.isdir(path):
            open_regular(path, error).close()


def read_bytes(path, max_bytes, error=UserError):
    """Returns the content of a regular file of at most `max_bytes` bytes."""
    try:
        with open_regular(path, error) as file:
            content = file.read(max_bytes + 1)
    except OSError as reason:
        raise error(f"{path}: {reason.strerror}") from None
    if len(content) > max_bytes:
        raise error(f"{path}: must have at most {max_bytes:,} bytes")
    return content


def read_text(path, max_bytes=MAX_JSON_BYTES, error=UserError):
    """Returns the text of a regular file of at most `max_bytes` bytes."""
    content = read_bytes(path, max_bytes, error)
    try:
        return content.decode()
    except UnicodeDecodeError as reason:
        raise error(
            f"{path}: not UTF-8 (byte 0x{content[reason.start]:02x} at position "
            f"{reason.start + 1})"
        ) from None


def read_json(path, schema, max_bytes=MAX_JSON_BYTES, error=UserError):
    """Returns the value in a JSON file, which matches a schema (see `parse_json`)."""
    return parse_json(read_bytes(path, max_bytes, error), schema, path, error)


def read_json_lines(path, schema, max_bytes=MAX_LOG_BYTES, error=UserError):
    """Returns the (line, value) pairs of a file with one JSON value per line.

    The lines are bytes without line endings. A process that is killed while writing
    leaves a partial line, so the last line is skipped if it is not JSON.
    """
    lines = read_bytes(path, max_bytes, error).splitlines()
    try:
        _loads(lines[-1] if lines else "{}")
    except (ValueError, RecursionError):
        del lines[-1]
    return [
        (line, parse_json(line, schema, f"{path}:{number}", error))
        for number, line in enumerate(lines, 1)
    ]


def parse_json(content, schema, label, error=UserError, finite=True):
    """Returns the value in JSON, which matches a schema.

    The schema is a type for pydantic, such as `dict[str, int]` or a `BaseModel`. Types
    are strict: 1 is not text, and true is not a number. If `finite`, NaN and infinite
    numbers are errors. Messages name the `label` and the key.
    """
    from pydantic import ValidationError

    try:
        value = _loads(content, finite)
        if _depth(value) > _MAX_DEPTH:
            raise RecursionError
        return _adapter(schema).validate_python(value, strict=True)
    except RecursionError:
        raise error(f"{label}: is nested too deeply") from None
    except ValidationError as reason:
        raise error(f"{label}: {validation_message(reason)}") from None
    except ValueError as reason:
        raise error(f"{label}: cannot be read: {shorten(reason)}") from None


def validation_message(exception):
    """Returns the first error of a pydantic `ValidationError` on one line."""
    first = exception.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))
    name = quote(key) if key else "the content"
    message = first["msg"].removeprefix("Value error, ").partition(" or instance ")[0]
    return shorten(f"{name} is wrong: {message}. Received: {quote(first['input'])}")


def quote(value):
    """Returns the `repr` of an untrusted name or value, at most 80 characters long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def shorten(value):
    """Returns an exception or other value as text on one line, for messages.

    The text has at most 200 characters. If it is empty, the name of the class is
    returned.
    """
    return escape_controls(" ".join(str(value).split()))[:200] or type(value).__name__


def escape_controls(text):
    r"""Escapes the characters that could control a terminal, such as \x1b.

    These are the characters that `str.isprintable` rejects, such as line ends and
    direction marks, except spaces of any width. Backslashes are not escaped.
    """
    return "".join(
        each
        if each.isprintable() or unicodedata.category(each) == "Zs"
        else each.encode("unicode_escape").decode()
        for each in text
    )


def _loads(content, finite=True):
    parse_float = _parse_float if finite else float
    return json.loads(
        content,
        parse_int=_parse_int,
        parse_float=parse_float,
        parse_constant=parse_float,
    )


def _parse_int(digits):
    # Python cannot format integers of more than 4,300 digits, and products of huge
    # numbers could be that long. 64-bit ids, which Keras writes, have up to 20 digits.
    if len(digits) <= 20:
        return int(digits)
    # transformers writes 10^30 as "no limit". No field for integers accepts a float.
    if math.isfinite(number := float(digits)):
        return number
    raise ValueError(f"the number {quote(digits)} is too large")


def _parse_float(digits):
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {quote(digits)} is not finite")
    return number


def _depth(value):
    """Returns the nesting depth of a JSON value. Numbers and text have depth 1."""
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return depth


@functools.cache
def _adapter(schema):
    from pydantic import TypeAdapter

    return TypeAdapter(schema)
