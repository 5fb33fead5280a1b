"""Fixtures of the tests of decoding."""

import pytest

from keras_transformer.decoding import loop


@pytest.fixture(autouse=True)
def divide_small_batches(monkeypatch):
    """Divides batches of constant shape that `decode_loop` would leave whole."""
    monkeypatch.setattr(loop, "MIN_DIVIDED", 2)
