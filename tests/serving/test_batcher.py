"""`Batcher` merges concurrent requests into batches. The model is a plain function."""

import threading
import time
from concurrent import futures

import numpy as np
import pytest
from waiting import wait_until

from keras_transformer.serving.batcher import Batcher
from keras_transformer.serving.limits import Limits, RequestError


class Doubling:
    """Model that doubles numbers and records its batches. It waits for `gate`."""

    def __init__(self):
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Event()
        self.batches = []
        self.observed = []

    def __call__(self, key, columns):
        self.started.set()
        assert self.gate.wait(20)
        self.batches.append((key, list(columns["x"])))
        if -1 in columns["x"]:
            raise ValueError("minus one")
        return {"y": np.array(columns["x"]) * 2}


@pytest.fixture
def model():
    model = Doubling()
    yield model
    model.gate.set()


@pytest.fixture
def batcher_of():
    """Function that creates a `Batcher`, which is closed after the test.

    Requests with the key "alone" never share a batch.
    """
    batchers = []

    def batcher_of(run, size=32, **limits):
        if "queue_size" in limits:
            limits["max_texts"] = 1
        batcher = Batcher(
            run,
            lambda key: key != "alone",
            lambda key: size,
            Limits(**{"max_wait": 0, **limits}),
            lambda *each: getattr(run, "observed", []).append(each),
        )
        batchers.append(batcher)
        return batcher

    yield batcher_of
    for batcher in batchers:
        batcher.close(20)


def submit(batcher, *values, key="a", timeout=20, **options):
    return batcher.submit(key, {"x": list(values)}, timeout, **options)


def result(future):
    return future.result(20)["y"].tolist()


def hold(model, batcher):
    """Submits a request whose batch keeps the worker waiting until `gate` is set."""
    model.gate.clear()
    model.started.clear()
    future = submit(batcher, 0)
    assert model.started.wait(20)
    return future


def test_batcher_merges_and_splits_requests(model, batcher_of):
    batcher = batcher_of(model, size=5)
    hold(model, batcher)
    futures = [
        submit(batcher, 1, 2),
        submit(batcher, 3),
        submit(batcher, *range(4, 16)),
        submit(batcher, 9, key="b"),
        *(submit(batcher, 7, key="alone") for _ in range(2)),
    ]
    model.gate.set()
    expected = [[2, 4], [6], [*range(8, 32, 2)], [18], [14], [14]]
    assert list(map(result, futures)) == expected
    assert model.batches[1] == ("a", [1, 2, 3, 4, 5])
    sizes = [len(rows) for key, rows in model.batches if key == "a"]
    assert sizes == [1, 5, 5, 5]
    assert [rows for key, rows in model.batches if key == "alone"] == [[7], [7]]


def test_batcher_waits_up_to_max_wait(model, batcher_of):
    batcher = batcher_of(model, size=3, max_wait=30)
    started = time.monotonic()
    futures = [submit(batcher, value) for value in (1, 2, 3)]
    assert list(map(result, futures)) == [[2], [4], [6]]
    assert time.monotonic() - started < 20  # a full batch does not wait
    assert len(model.batches) == 1
    assert result(submit(batcher_of(model, size=3, max_wait=0.05), 4)) == [8]


def test_batcher_pads_the_parts_of_a_request(batcher_of):
    def run(key, columns):
        longest = max(columns["x"])
        ids = [[1] * x + [0] * (longest - x) for x in columns["x"]]
        texts = [[b"a"] * x + [b""] * (longest - x) for x in columns["x"]]
        return {"ids": np.array(ids, "int32"), "texts": np.array(texts, object)}

    found = submit(batcher_of(run, size=1), 1, 3, 2).result(20)
    for name, array in run("a", {"x": [1, 3, 2]}).items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("max_values", [1400, 1399])
def test_batcher_counts_the_padding_of_a_request(batcher_of, max_values):
    def run(key, columns):
        batches.append(columns)
        longest = max(columns["x"])
        return {"y": np.ones((len(columns["x"]), longest, longest))}

    batches = []
    batcher = batcher_of(run, 2, max_values=max_values)
    # Six batches of 2 values and one of 200 have 1400 values after padding.
    future = submit(batcher, *[1] * 12, 10, 10, *[1] * 90)
    with pytest.raises(RequestError, match=f"at most {max_values:,} values") as error:
        future.result(20)
    assert error.value.status == 400
    wait_until(lambda: batcher.num_waiting == 0, "the rest to be dropped", 20)
    assert len(batches) == (8 if max_values == 1400 else 7)
    assert submit(batcher, 10, 10).result(20)["y"].shape == (2, 10, 10)


def test_batcher_refuses_when_full_and_recovers(model, batcher_of):
    batcher = batcher_of(model, queue_size=4)
    futures = [hold(model, batcher), submit(batcher, 1, 2, 3)]
    # Rows of warm-up requests fit into a full queue, and do not count.
    futures.append(submit(batcher, 7, 8, key="b", is_limited=False))
    assert batcher.num_waiting == 5
    with pytest.raises(RequestError, match="queue is full") as refused:
        submit(batcher, 4, 5)
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (503, "1")
    futures.append(submit(batcher, 4))  # one row still fits
    model.gate.set()
    assert list(map(result, futures)) == [[0], [2, 4, 6], [14, 16], [8]]
    assert result(submit(batcher, 1, 2, 3, 4)) == [2, 4, 6, 8]


def test_batcher_isolates_failing_requests(model, batcher_of):
    batcher = batcher_of(model)
    hold(model, batcher)
    first, bad, last = (submit(batcher, value) for value in (1, -1, 3))
    model.gate.set()
    assert (result(first), result(last)) == ([2], [6])
    with pytest.raises(ValueError, match="minus one"):
        bad.result(20)
    assert batcher.is_open


@pytest.mark.parametrize(
    "outputs",
    [
        [np.array(1.0)],
        [b"a scalar text"],
        [np.zeros(1)],  # one row for two
        [np.zeros(1), np.zeros((1, 1))],
        [np.zeros(1), np.array([b"a"], object)],
    ],
)
def test_batcher_survives_odd_outputs(outputs, batcher_of):
    """Each list has the outputs of the batches of a request with two rows."""
    size = 2 // len(outputs)
    outputs = [*outputs, np.array([3.0])]
    batcher = batcher_of(lambda *_: {"y": outputs.pop(0)}, size)
    with pytest.raises((TypeError, ValueError)):
        submit(batcher, 1, 2).result(20)
    assert result(submit(batcher, 3)) == [3]


def test_batcher_fails_only_the_request_whose_batches_do_not_fit(model, batcher_of):
    def run(key, columns):
        shape = (len(columns["x"]), *[1] * (4 in columns["x"]))
        return {"y": np.full(shape, model(key, columns)["y"].max())}

    batcher = batcher_of(run, size=3)
    hold(model, batcher)
    # The first batch is 1, 2 and 3, the second one is 4 and 5.
    bad, good = submit(batcher, 1, 2, 3, 4), submit(batcher, 5)
    model.gate.set()
    with pytest.raises(ValueError, match="zip"):
        bad.result(20)
    assert result(good) == [[10]]


def test_batcher_drops_expired_and_cancelled_requests(model, batcher_of):
    batcher = batcher_of(model)
    hold(model, batcher)
    late, gone = submit(batcher, 1, timeout=0.01), submit(batcher, 2)
    kept = submit(batcher, 3)
    assert gone.cancel()
    assert batcher.num_waiting == 2  # cancelled rows take no room
    time.sleep(0.05)
    model.gate.set()
    assert result(kept) == [6]
    with pytest.raises(RequestError) as error:
        late.result(20)
    assert error.value.status == 504
    assert [rows for _, rows in model.batches] == [[0], [3]]


def test_close_finishes_queued_requests(model, batcher_of):
    batcher = batcher_of(model)
    hold(model, batcher)
    waiting = submit(batcher, 1)
    batcher.drain()
    with pytest.raises(RequestError, match="shutting down"):
        submit(batcher, 2)
    model.gate.set()
    batcher.close(20)
    assert result(waiting) == [2]
    assert not batcher.is_working


def test_close_respects_its_timeout(model, batcher_of):
    """Requests in the running batch fail, too, because their results come too late."""
    batcher = batcher_of(model)
    futures = [hold(model, batcher), submit(batcher, 1)]
    batcher.close(0.05)
    for future in futures:
        with pytest.raises(RequestError, match="shutting down"):
            future.result(0)
    model.gate.set()
    wait_until(lambda: not batcher.is_working, "the end of the worker")
    assert [rows for _, rows in model.batches] == [[0]]


def test_batcher_serves_many_threads(model, batcher_of):
    batcher = batcher_of(model, size=8, max_wait=0.001)

    def client(number):
        for i in range(40):
            values = [number * 1000 + i, number * 1000 + i + 500][: 1 + i % 2]
            assert result(submit(batcher, *values)) == [2 * value for value in values]

    with futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(client, range(8)))
    # Each of 8 clients sends 20 requests with one row and 20 with two.
    wait_until(lambda: sum(rows for _, rows, _ in model.observed) == 480, "all rows")
    assert max(rows for _, rows, _ in model.observed) > 1
