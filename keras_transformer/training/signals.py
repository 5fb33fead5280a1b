"""Callback that saves a checkpoint on Ctrl-C, SIGTERM and SIGHUP."""

import contextlib
import signal

import keras

from keras_transformer.signals import handle_signals
from keras_transformer.training.replicas import SingleProcess

# Handlers for a second signal. A second Ctrl-C raises `KeyboardInterrupt`, so that
# temporary files are removed. A second SIGTERM has no handler and ends the process.
# The kernel and the shell both send SIGHUP when a terminal is closed.
_SECOND_SIGNAL_HANDLERS = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_IGN,
}


class _Stop(BaseException):
    """Exception that ends an `interruptible` block.

    `except Exception` does not catch it.
    """


class SaveOnSignal(keras.callbacks.Callback):
    """Callback that saves and stops training on Ctrl-C, SIGTERM and SIGHUP.

    It finishes the current step first. After `save`, it raises `KeyboardInterrupt` for
    Ctrl-C, and `SystemExit` with 128 plus the number of the signal for the others. If a
    second signal arrives before that, Ctrl-C raises `KeyboardInterrupt` at once without
    `save`, and SIGTERM ends the process at once. A signal to one of several workers
    stops all of them at the same step.

    Pass the callback to `fit`, and use it as a context manager around `fit`.

    Args:
        save: Function without arguments that writes a checkpoint.
        workers: `Workers` object of a distributed run. If `None`, this process trains
            alone.
    """

    SIGNALS = tuple(_SECOND_SIGNAL_HANDLERS)

    def __init__(self, save, workers=None):
        super().__init__()
        self.save = save
        self.workers = workers or SingleProcess()
        self._received = None
        self._handling = handle_signals(dict.fromkeys(self.SIGNALS, self._receive))
        self._handled = []
        self._may_raise = False

    def __enter__(self):
        self._handled = self._handling.__enter__()
        return self

    def __exit__(self, error, *_):
        self._handling.__exit__(None, None, None)
        # The signal may arrive after the last step or at the end of `interruptible`.
        if error is None or issubclass(error, _Stop):
            self._stop_if_requested()

    @contextlib.contextmanager
    def interruptible(self):
        """Saves and raises as soon as a signal arrives inside the context.

        With several workers, this still happens at the end of the step, because all
        workers must stop at the same step.
        """
        if self.workers.count > 1:
            yield
            return
        self._stop_if_requested()
        self._may_raise = True
        try:
            yield
        except _Stop:
            self._stop_if_requested()
        finally:
            self._may_raise = False

    def _receive(self, number, frame):
        self._received = number
        for each in self._handled:
            signal.signal(each, _SECOND_SIGNAL_HANDLERS[each])
        if self._may_raise:
            self._may_raise = False
            raise _Stop

    def on_train_batch_end(self, batch, logs=None):
        self._stop_if_requested()

    def _stop_if_requested(self):
        counts = self.workers.all_reduce_sum(
            [number == self._received for number in self.SIGNALS]
        )
        received = [
            number for number, count in zip(self.SIGNALS, counts, strict=True) if count
        ]
        if not received:
            return
        self.save()
        if received[0] == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + received[0])
