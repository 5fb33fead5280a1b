"""Standard error of native libraries, which write to the file descriptor."""

import contextlib
import os
import re
import sys
import tempfile
import threading

# Only one thread at a time may filter standard error.
_lock = threading.Lock()
# SentencePiece reports that a model's normalization table is empty. The models of this
# package have no such table, so the message would be logged for each of them.
# tensorflow-text's copy of the library has no option for the log level.
_NORMALIZER = re.compile(
    rb"normalizer\.cc\(\d+\) LOG\(INFO\) precompiled_charsmap is e"
)


class _Stderr:
    """Standard error of Python, separate from the output of native libraries.

    Python libraries keep the stream that they find when they are loaded. The stream is
    therefore never closed and always has the same descriptor.
    """

    stream = None
    is_used = False


@contextlib.contextmanager
def hide_native_output():
    """Discards native libraries' output to standard error and keeps Python's."""
    if _Stderr.is_used:
        yield
        return
    if _Stderr.stream is None:
        _Stderr.stream = open(  # noqa: SIM115, never closed
            os.dup(2), "w", buffering=1, errors="backslashreplace", closefd=False
        )
    own_stderr = sys.stderr
    with open(os.devnull, "wb") as nowhere, _redirect(nowhere) as real:
        os.dup2(real, _Stderr.stream.fileno())
        _Stderr.is_used = True
        try:
            if own_stderr is sys.__stderr__:
                sys.stderr = _Stderr.stream
            yield
        finally:
            _Stderr.is_used = False
            sys.stderr = own_stderr


@contextlib.contextmanager
def hide_normalizer_message():
    """Removes SentencePiece's message about normalization from standard error.

    Other lines appear when the context exits. Nothing is removed if the process has no
    standard error, or no file for the lines can be created.
    """
    with _lock:
        try:
            os.fstat(2)
            captured = tempfile.TemporaryFile()  # noqa: SIM115, closed below
        except OSError:
            captured = None
        if captured is None:
            yield
            return
        with captured:
            try:
                with _redirect(captured):
                    yield
            finally:
                captured.seek(0)
                lines = [each for each in captured if not _NORMALIZER.match(each)]
                kept = b"".join(lines)
                with contextlib.suppress(OSError):
                    while kept:
                        kept = kept[os.write(2, kept) :]


@contextlib.contextmanager
def _redirect(file):
    """Lets descriptor 2 write to a file. Yields a descriptor of the real one."""
    real = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield real
    finally:
        os.dup2(real, 2)
        os.close(real)
