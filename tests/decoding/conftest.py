"""Fixtures of the tests of decoding."""

import pytest

from keras_transformer.decoding import loop


@pytest.fixture(autouse=True)
def halve_small_batches(monkeypatch):
    """Halves batches of constant shape that `decode_loop` would leave whole."""
    monkeypatch.setattr(loop, "MIN_HALVED", 2)
