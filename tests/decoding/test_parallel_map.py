"""Calls of a function in several threads."""

import threading
import time

import pytest

from keras_transformer.decoding.compiled import parallel_map


def test_batches_run_in_parallel():
    """Each call waits until three have started, so a sequential map would hang."""
    meeting = threading.Barrier(3)
    found = parallel_map(lambda item: (meeting.wait(60), -item)[1], range(6), 3)
    assert sorted(found) == [(item, -item) for item in range(6)]


def test_failure_in_a_batch_ends_the_others():
    begun = []

    # `parallel_map` begins with the last item.
    def fail(item):
        begun.append(item)
        if item == 99:
            raise KeyError(item)
        time.sleep(0.1)

    with pytest.raises(KeyError, match="99"):
        list(parallel_map(fail, range(100), 2))
    assert len(begun) < 100
