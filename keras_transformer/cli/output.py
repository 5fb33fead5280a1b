"""Output files and standard output of commands."""

import contextlib
import os
import pathlib
import re
import stat
import sys

from keras_transformer.cli.console import require_writable
from keras_transformer.errors import UserError
from keras_transformer.files import convert_disk_full_errors, replace_file


def require_output(output, *inputs):
    """Raises `UserError` unless a file can be written that is none of the inputs.

    `None` is skipped.
    """
    if output is not None and _descriptor(output) is None:
        require_writable(output)
    if output is None or not output.is_file():
        return
    if any(output.samefile(path) for path in inputs if path and path.exists()):
        raise UserError(f"--output {output}: must not be an input file")


@contextlib.contextmanager
def open_output(path: pathlib.Path | None, line_end=b"\n"):
    """Yields a function that writes a line of UTF-8 to a file or standard output.

    A line end inside a line becomes a space. See `open_binary_output`.
    """
    with open_binary_output(path) as file:
        yield line_writer(file, line_end)


@contextlib.contextmanager
def open_binary_output(path: pathlib.Path | None):
    """Opens a binary file, or standard output if `path` is `None`.

    A file appears under its name only when it is complete. Devices and pipes are
    written to directly.
    """
    if path is None:
        if sys.stdout is None:
            raise UserError("standard output is closed; give a file with --output")
        yield sys.stdout.buffer
        return
    if (descriptor := _descriptor(path)) is not None:
        with (
            convert_disk_full_errors(path),
            open(descriptor, "wb", closefd=False) as file,
        ):
            yield file
        return
    require_writable(path)
    if path.exists() and not path.is_file():
        with convert_disk_full_errors(path), open(path, "wb") as file:
            yield file
        return
    path = os.path.realpath(path)  # so that a link is kept and its target is replaced
    with replace_file(path) as temporary, open(temporary, "wb") as file:
        yield file


def sync_output(file):
    """Flushes a binary file and, unless it is a pipe or device, waits for the disk."""
    file.flush()
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        os.fsync(file.fileno())


def _descriptor(path):
    """Returns the number of an open descriptor that `path` names, or `None`.

    Opening such a path again would truncate a file to which output is redirected.
    """
    named = {"/dev/stdout": 1, "/dev/stderr": 2}
    found = re.fullmatch(r"/dev/fd/(\d+)|/proc/self/fd/(\d+)", str(path))
    return int(found[1] or found[2]) if found else named.get(str(path))


def line_writer(file, line_end=b"\n"):
    """Returns a function that writes and flushes a line of UTF-8 to a binary file."""

    def write_line(text: str) -> None:
        # A model can generate a line end byte by byte, but a line must stay one line.
        one_line = text.replace("\r", " ").replace("\n", " ")
        file.write(one_line.encode("utf-8", "replace") + line_end)
        file.flush()

    return write_line
