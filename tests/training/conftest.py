"""A fake clock, which tests of callbacks advance."""

import pytest

from keras_transformer import progress
from keras_transformer.training import callbacks


class Clock:
    """Replaces the module `time`."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(callbacks, "time", clock)
    monkeypatch.setattr(progress, "time", clock)
    return clock
