"""The `keras-transformer` command: one module per command.

Modules import TensorFlow and Keras only after the command has checked its arguments.
"""

import contextlib
import gc
import os
import sys

# Exit codes after SIGHUP, SIGINT and SIGTERM.
_STOPPED = (129, 130, 143)


def main() -> None:
    """Runs the command line."""
    from keras_transformer.cli.app import app

    try:
        # With `python -m`, completion would apply to the command `python`.
        app(prog_name="keras-transformer")
    except SystemExit as stop:
        if stop.code in _STOPPED:
            # Threads of libraries, which read data or learn a vocabulary, would delay
            # Python's own exit.
            for stream in (sys.stdout, sys.stderr):
                # It may be missing, closed, or a pipe that is closed.
                with contextlib.suppress(AttributeError, OSError, ValueError):
                    stream.flush()
            os._exit(stop.code)
        raise
    finally:
        # At its exit, Python would search TensorFlow's objects for garbage for seconds.
        gc.freeze()
