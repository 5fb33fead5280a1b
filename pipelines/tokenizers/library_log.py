"""Hides a message that SentencePiece logs for each model of this package."""

import contextlib
import os
import re
import tempfile
import threading

# The message reports that the normalization table is empty. The models of this package
# have no such table, so the message would be logged for each of them.
_MESSAGE = re.compile(rb"normalizer\.cc\(\d+\) LOG\(INFO\) precompiled_charsmap is e")
# Only one thread at a time may replace the file descriptor of standard error.
_lock = threading.Lock()


@contextlib.contextmanager
def hide_normalizer_message():
    """Removes SentencePiece's message about normalization from standard error.

    tensorflow-text's copy of the library has no option for the log level. Other lines
    are kept and appear when the context exits. Nothing is removed if the process has
    no standard error, or no file for the lines can be created.
    """
    with _lock, contextlib.ExitStack() as files:
        try:
            captured = files.enter_context(_temporary_file())
            real = os.dup(2)
        except OSError:
            captured = None
        if captured is None:
            yield
            return
        os.dup2(captured.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(real, 2)
            os.close(real)
            captured.seek(0)
            kept = b"".join(line for line in captured if not _MESSAGE.match(line))
            with contextlib.suppress(OSError):
                while kept:
                    kept = kept[os.write(2, kept) :]


def _temporary_file():
    """Opens a file in memory. Systems other than Linux create a temporary file."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("stderr"), "w+b")
    return tempfile.TemporaryFile()
