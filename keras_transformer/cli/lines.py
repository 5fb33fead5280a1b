"""Text of commands: input lines, chunks with a progress bar, and output lines.

Output that a killed command can resume is written to `OUTPUT.part`, which is renamed to
`OUTPUT` at the end. The file `.OUTPUT.made.json` records everything that determines the
lines, such as the model. A command resumes only an output with the same record.
"""

import contextlib
import fcntl
import itertools
import json
import os
import pathlib
import sys
from typing import Any

from keras_transformer.cli import console
from keras_transformer.errors import DataError, UserError
from keras_transformer.files import (
    convert_disk_full_errors,
    replace_file,
    replace_text,
    sync,
)
from keras_transformer.pipelines.lines import (
    check_aligned,
    measure_lines,
    opened_lines,
    read_lines,
)
from keras_transformer.untrusted import read_json

# Lines per chunk, enough that sorting by length yields batches of similarly long lines.
# Chunks of 2,000 lines are not faster, and those of 250 are 5% slower.
CHUNK_SIZE = 500
# Opening such a path would replace a file to which output is redirected.
_STDOUT = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


def is_file(path):
    """Returns whether `input_lines` reads a file rather than standard input."""
    return path is not None and str(path) != "-"


def is_seekable_file(path):
    """Returns whether `path` can be read more than once, unlike a pipe."""
    return is_file(path) and path.is_file()


def require_one_stdin(input_path, *others):
    """Raises `UserError` if several paths, of which `None` is skipped, are "-".

    For `input_path`, `None` is also standard input.
    """
    if [str(input_path or "-"), *map(str, others)].count("-") > 1:
        raise UserError("standard input can be read only once. Pass files instead")


def measure(path):
    r"""Returns the number of lines of a file, and the bytes at the end of each.

    For standard input and for a pipe, which can be read only once, the number is `None`
    and the end is ``\n``.
    """
    if not is_seekable_file(path):
        return None, b"\n"
    count, has_crlf = measure_lines(path)
    return count, b"\r\n" if has_crlf else b"\n"


def input_lines(path):
    """Yields the lines of a text file, or of standard input for None or "-".

    Bytes that are not UTF-8 become U+FFFD, with a warning at the end.
    """
    if is_file(path):
        yield from read_lines(path, errors="replace")
    elif sys.stdin is None:
        raise UserError("standard input is closed. Pass a file as --input")
    else:
        yield from opened_lines(sys.stdin.buffer, "standard input", errors="replace")


def chunk_size(path, size):
    """Returns `size`, or 1 for lines that are typed, so that each is answered."""
    is_typed = not is_file(path) and sys.stdin is not None and sys.stdin.isatty()
    return 1 if is_typed else size


def in_chunks(
    items, size, description, warnings=None, total=None, unit="lines", skip=0
):
    """Yields (index of the first item, list of `size` items), and shows progress.

    `warnings` is a `LineWarnings` that receives the numbers of each chunk's items.
    """
    if total is None and hasattr(items, "__len__"):
        total = len(items)
    items = itertools.islice(items, skip, None)
    bar = None
    if not console.settings.quiet:
        from keras_transformer.progress import ProgressBar

        bar = ProgressBar(description, total, skip, unit, transient=True)
    with bar or contextlib.nullcontext():
        while chunk := list(itertools.islice(items, size)):
            if warnings is not None:
                warnings.numbers = range(skip + 1, skip + 1 + len(chunk))
            yield skip, chunk
            skip += len(chunk)
            if bar:
                bar.show_count(skip, unit)


def score_in_chunks(translator, pairs, warnings, total=None, skip=0):
    """Yields a `PairScore` per (source, target) pair, with a progress bar."""
    chunks = in_chunks(pairs, CHUNK_SIZE, "scoring", warnings, total, skip=skip)
    for _, chunk in chunks:
        yield from translator.score(*map(list, zip(*chunk, strict=True)))


def stream_parallel_lines(*paths):
    """Yields tuples of lines of files that are aligned line by line."""
    check_aligned(*filter(is_seekable_file, paths))
    rows = itertools.zip_longest(*map(read_lines, paths))
    number = 0
    for number, row in enumerate(rows, 1):
        if None in row:  # of pipes
            raise DataError(f"{paths[row.index(None)]}: has fewer than {number} lines")
        yield row
    if not number:
        raise DataError(f"{paths[0]}: the file is empty")


def read_parallel_lines(*paths):
    """Returns lists of the lines of files that are aligned line by line."""
    return [*map(list, zip(*stream_parallel_lines(*paths), strict=True))]


def require_output(output, *inputs):
    """Raises `UserError` unless a file can be written that is none of the inputs.

    `None` is skipped.
    """
    console.require_writable(output)
    if output is None or not output.is_file():
        return
    if any(output.samefile(path) for path in inputs if path and path.exists()):
        raise UserError(f"--output {output}: must not be an input file")


@contextlib.contextmanager
def open_output(path: pathlib.Path | None, line_end=b"\n"):
    """Yields a function that writes a line of UTF-8 to a file or standard output.

    A line end inside a line becomes a space.
    """
    with open_binary_output(path) as file:
        yield line_writer(file, line_end)


@contextlib.contextmanager
def open_binary_output(path: pathlib.Path | None):
    """Opens a binary file, or standard output if `path` is `None`.

    A file appears under its name only when it is complete. Devices and pipes are
    written to directly.
    """
    if path is None or str(path) in _STDOUT:
        if sys.stdout is None:
            raise UserError("standard output is closed. Pass a file as --output")
        yield sys.stdout.buffer
        return
    if is_stream(path):
        with convert_disk_full_errors(path), open(path, "wb") as file:
            yield file
        return
    path = os.path.realpath(path)  # so that a link is kept and its target is replaced
    with replace_file(path) as temporary, open(temporary, "wb") as file:
        yield file


def is_stream(path):
    """Returns whether an output is a device, a pipe or standard output."""
    return str(path) in _STDOUT or (path.exists() and not path.is_file())


def line_writer(file, line_end=b"\n"):
    """Returns a function that writes and flushes a line of UTF-8 to a binary file."""

    def write_line(text: str) -> None:
        # A model can generate a line end byte by byte, but a line must stay one line.
        one_line = text.replace("\r", " ").replace("\n", " ")
        file.write(one_line.encode("utf-8", "replace") + line_end)
        file.flush()

    return write_line


def resumable_path(output, *inputs):
    """Returns the path to write with --resume, which is the target of a link."""
    if output is None or not all(map(is_seekable_file, inputs)):
        raise UserError("--resume: needs --output, and regular files as inputs")
    if output.exists() and not output.is_file():
        raise UserError(f"{output}: must be a regular file with --resume")
    return output.resolve() if output.is_symlink() else output


@contextlib.contextmanager
def resumable_output(
    output, record, num_inputs, numbered, line_end=b"\n", convert=None
):
    """Writes an output file or continues an interrupted one.

    Yields a function that writes a line, and the number of input lines whose output is
    complete. At the end, `convert` turns the bytes of all lines into the output's.
    """
    part = _part(output)
    # Opening a named pipe would block until another process reads from it, and writing
    # through a link would change a file elsewhere.
    if part.is_symlink() or (part.exists() and not part.is_file()):
        raise UserError(f"{part}: must be a regular file. Remove it to start over")
    with convert_disk_full_errors(part), open(part, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{part}: another process is writing to it. Wait for its end, or use "
                "another --output"
            ) from None
        num_done = 0
        if file.tell():
            _check_record(part, output, record)
            length, num_done = _complete_lines(part, numbered)
            if num_done > num_inputs:
                raise UserError(
                    f"{part}: contains the output of {num_done} input lines, but the "
                    f"input has only {num_inputs}. Remove it to start over"
                )
            file.truncate(length)
        else:
            replace_text(record_file(output), json.dumps(record))
        yield line_writer(file, line_end), num_done
        file.flush()
        sync(part)
        if convert is None:
            part.replace(output)
        else:
            with replace_file(output) as temporary:
                pathlib.Path(temporary).write_bytes(convert(part.read_bytes()))
            part.unlink()
        sync(output.parent)


def is_finished(output, record):
    """Returns whether an output with the same record is complete."""
    if not output.exists() or _part(output).exists():
        return False
    _check_record(output, output, record)
    return True


def _part(output):
    return output.with_name(f"{output.name}.part")


def record_file(output):
    """Returns the path of the record of an output."""
    return output.with_name(f".{output.name}.made.json")


def _check_record(path, output, record):
    """Raises `UserError` unless an output was made with this record."""
    file = record_file(output)
    try:
        known = read_json(file, dict[str, Any])
    except UserError:
        raise UserError(
            f"{path}: its record {file.name} is missing or damaged. Delete both to "
            "start over"
        ) from None
    for name in known | record:
        if known.get(name) != record.get(name):
            raise UserError(
                f"{path}: was made with a different {name}. Remove it to start over"
            )


def _complete_lines(part, numbered):
    """Returns the bytes of an output's complete lines, and their input lines."""
    length = num_inputs = 0
    last, last_start = None, 0
    with open(part, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            number = line.partition(b"\t")[0] if numbered else num_inputs + 1
            if number != last:
                last, last_start = number, length
                num_inputs += 1
            length += len(line)
    # The last input may lack some of its numbered lines, so it is translated again.
    return (last_start, max(num_inputs - 1, 0)) if numbered else (length, num_inputs)
