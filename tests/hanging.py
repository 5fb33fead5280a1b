"""Hooks that end the process of a test whose timeout has no effect.

pytest-timeout makes a hanging test fail by a signal. Python handles the signal only
between its own instructions, so never while C++ code waits for a lock. `faulthandler`
then prints the stacks of all threads and ends the process. A worker of pytest-xdist is
replaced, and its test is reported as failed.
"""

import faulthandler
import os

# Seconds after the timeout. A test that can fail in the normal way has failed by then.
GRACE = 30

_stderr = None


def pytest_sessionstart():
    """Copies standard error, which pytest redirects while a test runs."""
    global _stderr
    _stderr = os.dup(2)


def pytest_timeout_set_timer(item, settings):
    """Starts a second timer, in addition to the one of pytest-timeout."""
    faulthandler.dump_traceback_later(settings.timeout + GRACE, file=_stderr, exit=True)


def pytest_timeout_cancel_timer(item):
    """Stops the second timer."""
    faulthandler.cancel_dump_traceback_later()
