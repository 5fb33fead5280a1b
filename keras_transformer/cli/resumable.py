"""A file of lines that a killed command can go on with."""

import contextlib
import fcntl
import json
import os
import pathlib

from keras_transformer.cli.console import line_writer
from keras_transformer.errors import UserError
from keras_transformer.files import told_when_full


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
    part, note, made = _files(output)
    with told_when_full(part), open(part, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{part}: another process writes it") from None
        if file.tell():
            _check(part, note, facts, "begun")
            length, done = _whole(part, numbered)
            if done > num_inputs:
                raise UserError(
                    f"{part}: holds lines of {done} inputs, but the input has "
                    f"{num_inputs}; remove it to begin anew"
                )
            file.truncate(length)
        else:
            done = 0
            _write_note(note, facts)
        yield line_writer(file), done
        # Killed between any two of these: whole, or gone on with.
        _write_note(made, facts)
        part.replace(output)
        note.unlink(missing_ok=True)


def is_finished(output: pathlib.Path, facts: dict):
    """Whether `resumable_lines` has written an output, of the same facts, to its end.

    Raises:
        UserError: it is there, but of other facts, or nothing tells of which.
    """
    part, _, made = _files(output)
    if not output.exists() or part.exists():
        return False
    _check(output, made, facts, "made")
    return True


def _files(output):
    """The part, its note, and the note that stays beside the finished output."""
    part = output.with_name(f"{output.name}.part")
    made = output.with_name(f".{output.name}.made.json")
    return part, part.with_name(f"{part.name}.json"), made


def _write_note(path, facts):
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(facts), encoding="utf-8")
    temporary.replace(path)


def _check(path, note, facts, how):
    """Raises `UserError` where a file was begun, or made, with something else."""
    try:
        known = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = None
    if not isinstance(known, dict):
        raise UserError(
            f"{path}: {note.name}, which tells what it was {how} with, is missing or "
            "damaged; remove both to begin anew"
        )
    for name, value in facts.items():
        if known.get(name) != value:
            raise UserError(
                f"{path}: was {how} with another {name}; remove it to begin anew"
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
