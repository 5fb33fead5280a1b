"""Handlers of signals, and calls that signals interrupt."""

import concurrent.futures
import contextlib
import signal
import sys
import threading


@contextlib.contextmanager
def handle_signals(handlers):
    """Sets handlers of signals inside the context, and yields the signals it handles.

    Signals that are ignored stay ignored, such as SIGHUP under `nohup`. Python allows
    only the main thread to set handlers, so in other threads, none is set.
    """
    previous = {}
    if threading.current_thread() is threading.main_thread():
        previous = {number: signal.getsignal(number) for number in handlers}
    handled = [each for each in previous if previous[each] is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, handlers[number])
    try:
        yield handled
    finally:
        for number, handler in previous.items():
            # Python does not know a handler that a library has set.
            signal.signal(number, handler or signal.SIG_DFL)


def call_in_thread(function):
    """Calls a function that signals could not interrupt, and returns its result.

    Python handles signals in the main thread, but not while it waits inside a library.
    So another thread calls the function.
    """
    future = concurrent.futures.Future()

    def run():
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    # Unlike the threads of an executor, a daemon does not delay the end of the process.
    threading.Thread(target=run, daemon=True).start()
    return future.result()


def exit_on_signals():
    """Makes SIGTERM and SIGHUP raise `SystemExit`, so that temporary files are removed.

    A closed terminal sends SIGHUP.
    """
    return handle_signals(dict.fromkeys((signal.SIGTERM, signal.SIGHUP), _exit))


def _exit(number, _):
    # The kernel and the shell both send SIGHUP when a terminal is closed.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.exit(128 + number)
