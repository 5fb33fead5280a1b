"""A file of lines that a killed command can go on with."""

import contextlib
import fcntl
import json
import os
import pathlib

from keras_transformer.cli.console import UserError
from keras_transformer.cli.console import line_writer


@contextlib.contextmanager
def resumable_lines(output: pathlib.Path, facts: dict, num_inputs: int, numbered: bool):
    """Lines on their way to `output`, kept in `OUTPUT.part` until all are there.

    Args:
        output: The file.
        facts: What the lines are made of, for JSON; noted beside them, so that they
            are not gone on with from anything else.
        num_inputs: Lines of the input.
        numbered: Whether an input can have several lines, which begin with its number
            and a tab. Otherwise each has one.

    Yields:
        `(write_line, done)`: the function that writes a line, and how many inputs have
        all their lines already.

    Raises:
        UserError: the part is of other facts, has lines of more inputs than there
            are, or is being written by another process.
    """
    part = output.with_name(f"{output.name}.part")
    note = part.with_name(f"{part.name}.json")
    with open(part, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{part}: another process writes it") from None
        if file.tell():
            _check(part, note, facts)
            length, done = _whole(part, numbered)
            if done > num_inputs:
                raise UserError(
                    f"{part}: holds lines of {done} inputs, but the input has "
                    f"{num_inputs}; remove it to begin anew"
                )
            file.truncate(length)
        else:
            done = 0
            temporary = note.with_name(f".{note.name}.{os.getpid()}")
            temporary.write_text(json.dumps(facts), encoding="utf-8")
            temporary.replace(note)
        yield line_writer(file), done
        part.replace(output)
        note.unlink(missing_ok=True)


def _check(part, note, facts):
    """Raises `UserError` where a part was begun with something else."""
    try:
        known = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = None
    if not isinstance(known, dict):
        raise UserError(
            f"{part}: {note.name}, which tells what it was begun with, is missing or "
            "damaged; remove both to begin anew"
        )
    for name, value in facts.items():
        if known.get(name) != value:
            raise UserError(
                f"{part}: was begun with another {name}; remove it to begin anew"
            )


def _whole(part, numbered):
    """Bytes of the whole lines of a part, and the number of inputs they belong to."""
    length = count = 0
    last, last_start = None, 0
    with open(part, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            if numbered:
                number = line.partition(b"\t")[0]
                if number != last:
                    last, last_start = number, length
                    count += 1
            else:
                count += 1
            length += len(line)
    # Of the last input more lines may have been to come.
    return (last_start, max(count - 1, 0)) if numbered else (length, count)
