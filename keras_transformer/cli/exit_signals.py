"""Signals that end a command."""

import contextlib
import signal
import sys
import threading

_TERMINATING = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def exit_on_signals():
    """Makes SIGTERM and SIGHUP raise `SystemExit`, so that temporary files are removed.

    A closed terminal sends SIGHUP. If SIGHUP is already ignored, as under `nohup`, it
    stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in _TERMINATING}
    if previous[signal.SIGHUP] is signal.SIG_IGN:
        del previous[signal.SIGHUP]
    for number in previous:
        signal.signal(number, _exit)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _exit(number, _):
    # The kernel and the shell both send SIGHUP when a terminal is closed.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.exit(128 + number)
