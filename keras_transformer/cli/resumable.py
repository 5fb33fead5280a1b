"""Line-by-line output that a killed command can resume.

Lines are written to `OUTPUT.part`, which is renamed to `OUTPUT` at the end. The file
`.OUTPUT.made.json` records everything that determines the lines, such as the model. A
command resumes only an output with the same record.
"""

import contextlib
import fcntl
import json
from typing import Any

from keras_transformer.cli.output import line_writer
from keras_transformer.errors import UserError
from keras_transformer.files import (
    convert_disk_full_errors,
    is_hard_link,
    replace_file,
    sync,
)
from keras_transformer.untrusted import read_json


@contextlib.contextmanager
def resumable_lines(output, record, num_inputs, numbered, line_end=b"\n"):
    """Writes an output file or continues an interrupted one.

    Yields a function that writes a line, and the number of input lines whose output is
    complete.
    """
    part = _part(output)
    # Opening a named pipe would block until another process reads from it.
    if part.exists() and not part.is_file():
        raise UserError(f"{part}: must be a regular file; remove it to start over")
    if part.is_symlink() or (part.exists() and is_hard_link(part.lstat())):
        raise UserError(f"{part}: must not be a link; remove it to start over")
    with convert_disk_full_errors(part), open(part, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{part}: another process is writing to it") from None
        num_done = 0
        if file.tell():
            _check_record(part, output, record)
            length, num_done = _complete_lines(part, numbered)
            if num_done > num_inputs:
                raise UserError(
                    f"{part}: contains the output of {num_done} input lines, but the "
                    f"input has only {num_inputs}; remove it to start over"
                )
            file.truncate(length)
        else:
            with replace_file(_record_file(output)) as temporary:
                temporary.write_text(json.dumps(record), encoding="utf-8")
        yield line_writer(file, line_end), num_done
        file.flush()
        sync(part)
        part.replace(output)
        sync(output.parent)


def is_finished(output, record):
    """Returns whether an output with the same record is complete."""
    if not output.exists() or _part(output).exists():
        return False
    _check_record(output, output, record)
    return True


def _part(output):
    return output.with_name(f"{output.name}.part")


def _record_file(output):
    return output.with_name(f".{output.name}.made.json")


def _check_record(path, output, record):
    """Raises `UserError` unless an output was made with this record."""
    file = _record_file(output)
    try:
        known = read_json(file, dict[str, Any])
    except UserError:
        raise UserError(
            f"{path}: its record {file.name} is missing or damaged. Delete both to "
            "start over"
        ) from None
    for name, value in record.items():
        if known.get(name) != value:
            raise UserError(
                f"{path}: was made with a different {name}; remove it to start over"
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
