"""Ctrl-C and SIGTERM during training."""

import contextlib
import signal
import threading

import keras

# Ctrl-C again is an exception, so that temporary files go.
_SECOND = {signal.SIGINT: signal.default_int_handler}


class _Stop(BaseException):
    """Leaves what is interruptible; no handler of errors catches it."""


class SaveOnSignal(keras.callbacks.Callback):
    """Ctrl-C and SIGTERM finish the step, save, and end training.

    Ctrl-C raises `KeyboardInterrupt`, SIGTERM `SystemExit(143)`, both after `save`. A
    second signal does not wait: Ctrl-C raises at once, SIGTERM ends the process. A
    signal to one of several workers ends all of them, at one step.

    Args:
        save: Function of no argument.
        total: `Workers.total` of several workers.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, save, total=list):
        super().__init__()
        self.save = save
        self.total = total
        self._received = None
        self._previous = {}
        self._may_raise = False

    def __enter__(self):
        # Python lets only the main thread handle signals.
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, error, *_):
        self._restore()
        # A signal that came after the last step, or as `interruptible` was left.
        if error is None or issubclass(error, _Stop):
            self._stop_if_told()

    @contextlib.contextmanager
    def interruptible(self):
        """Inside, a signal does not wait for the step's end: it saves and raises.

        Several workers wait for each other's next step.
        """
        if self.total is not list:
            yield
            return
        self._stop_if_told()
        self._may_raise = True
        try:
            yield
        except _Stop:
            self._stop_if_told()
        finally:
            self._may_raise = False

    def _receive(self, number, frame):
        self._received = number
        for each in self._previous:
            signal.signal(each, _SECOND.get(each, signal.SIG_DFL))
        if self._may_raise:
            self._may_raise = False
            raise _Stop

    def _restore(self):
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def on_train_batch_end(self, batch, logs=None):
        self._stop_if_told()

    def _stop_if_told(self):
        counts = self.total([number == self._received for number in self.SIGNALS])
        if not any(counts):
            return
        self.save()
        if counts[0]:
            raise KeyboardInterrupt
        raise SystemExit(128 + signal.SIGTERM)
