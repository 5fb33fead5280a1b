"""Log handler that prints the package's messages like a command's own messages."""

import contextlib
import logging
import traceback


@contextlib.contextmanager
def print_library_log():
    """Prints the messages that the package logs in the context to standard error.

    Warnings and errors begin with their level. Other messages are hidden by --quiet.
    """
    logger = logging.getLogger("keras_transformer")
    if any(isinstance(handler, _Handler) for handler in logger.handlers):
        yield  # a command has called another one
        return
    handler, level, propagate = _Handler(), logger.level, logger.propagate
    logger.addHandler(handler)
    # absl's handler on the root logger would print each message a second time.
    logger.propagate = False
    if level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


class _Handler(logging.Handler):
    def emit(self, record):
        from keras_transformer.cli import console

        message = record.getMessage()
        if record.levelno < logging.WARNING:
            console.print_status(message)
        elif record.levelno < logging.ERROR:
            console.warn(message)
        else:
            console.print_error(f"error: {message}")
        if record.exc_info:
            for text in traceback.format_exception(*record.exc_info):
                for line in text.splitlines():
                    console.print_error(line)
