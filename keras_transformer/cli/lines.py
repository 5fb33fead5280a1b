"""Input readers: single lines, chunks with a progress bar, and two aligned files."""

import contextlib
import itertools
import sys

from keras_transformer.cli import common
from keras_transformer.errors import DataError, UserError

# Lines per chunk, enough that sorting by length yields batches of similarly long lines.
# Chunks of 2,000 lines are not faster, and those of 250 are 5% slower.
CHUNK_SIZE = 500


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
    readers = [path for path in (input_path or "-", *others) if str(path) == "-"]
    if len(readers) > 1:
        raise UserError("standard input can be read only once; give files instead")


def measure(path):
    r"""Returns the number of lines of a file, and the bytes at the end of each.

    For standard input and for a pipe, which can be read only once, the number is `None`
    and the end is ``\n``.
    """
    from keras_transformer.pipelines.lines import measure_lines

    if not is_seekable_file(path):
        return None, b"\n"
    count, has_crlf = measure_lines(path)
    return count, b"\r\n" if has_crlf else b"\n"


def input_lines(path):
    """Yields the lines of a text file, or of standard input for None or "-".

    Bytes that are not UTF-8 become U+FFFD, with a warning at the end.
    """
    from keras_transformer.pipelines.lines import opened_lines, read_lines

    if is_file(path):
        yield from read_lines(path, errors="replace")
    elif sys.stdin is None:
        raise UserError("standard input is closed")
    else:
        yield from opened_lines(sys.stdin.buffer, "standard input", errors="replace")


def chunk_size(path, size):
    """Returns `size`, or 1 for lines that are typed, so that each is answered."""
    is_typed = not is_file(path) and sys.stdin is not None and sys.stdin.isatty()
    return 1 if is_typed else size


@contextlib.contextmanager
def progress(description: str, total: int | None, unit: str = "lines", done: int = 0):
    """Shows progress on standard error, except with --quiet.

    Yields a function to call with the number of units just done.
    """
    if common.current.quiet:
        yield lambda count: None
        return
    from keras_transformer.progress import ProgressBar

    bar = ProgressBar(description, total, done, unit, transient=True)

    def advance(count):
        nonlocal done
        done += count
        if bar.is_due(done):
            of_total = "" if total is None else f" of {total:,}"
            bar.show(done, unit, f"{description}: {done:,}{of_total} {unit}")

    with bar:
        yield advance


def in_chunks(items, size, description, total=None, unit="lines", skip=0):
    """Yields (index of the first item, list of `size` items), and shows progress."""
    if total is None and hasattr(items, "__len__"):
        total = len(items)
    items = itertools.islice(items, skip, None)
    with progress(description, total, unit, skip) as advance:
        while chunk := list(itertools.islice(items, size)):
            yield skip, chunk
            skip += len(chunk)
            advance(len(chunk))


def score_in_chunks(translator, pairs, warnings):
    """Yields a `PairScore` per (source, target) pair, with a progress bar."""
    for start, chunk in in_chunks(pairs, CHUNK_SIZE, "scoring"):
        warnings.numbers = range(start + 1, start + 1 + len(chunk))
        yield from translator.score(*map(list, zip(*chunk, strict=True)))


def read_parallel_lines(*paths):
    """Returns lists of the lines of files that are aligned line by line."""
    from keras_transformer.pipelines.lines import read_lines

    texts = [list(read_lines(path)) for path in paths]
    for path, lines in zip(paths, texts, strict=True):
        if not lines:
            raise DataError(f"{path}: the file is empty")
        if len(lines) != len(texts[0]):
            raise DataError(
                f"{paths[0]} and {path} must have the same number of lines. Received: "
                f"{len(texts[0])} and {len(lines)}"
            )
    return texts
