"""`Batcher` merges concurrent requests into batches. The model is a plain function."""

import threading
import time

import numpy as np
import pytest
from waiting import wait_until

from keras_transformer.serving.batcher import Batcher
from keras_transformer.serving.errors import RequestError


class Doubling:
    """Model that doubles numbers and records its batches. It waits for `gate`."""

    def __init__(self):
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Event()
        self.batches = []

    def __call__(self, signature, columns):
        self.started.set()
        assert self.gate.wait(20)
        self.batches.append((signature, list(columns["x"])))
        if -1 in columns["x"]:
            raise ValueError("minus one")
        return {"y": np.array(columns["x"]) * 2}


@pytest.fixture
def model():
    model = Doubling()
    yield model
    model.gate.set()


def submit(batcher, *values, signature="a", timeout=20):
    return batcher.submit(signature, {"x": list(values)}, timeout)


def hold(model, batcher):
    """Submits a request whose batch keeps the worker waiting until `gate` is set."""
    model.gate.clear()
    model.started.clear()
    future = submit(batcher, 0)
    assert model.started.wait(20)
    return future


def test_batcher_merges_waiting_requests(model):
    batcher = Batcher(model, max_batch_size=5, max_wait=0)
    hold(model, batcher)
    futures = [submit(batcher, 1, 2), submit(batcher, 3), submit(batcher, 4, 5, 6)]
    other = submit(batcher, 9, signature="b")
    model.gate.set()
    results = [future.result(20)["y"].tolist() for future in futures]
    assert results == [[2, 4], [6], [8, 10, 12]]
    assert other.result(20)["y"].tolist() == [18]
    # The rest of the third request may run before or after the signature "b".
    assert model.batches[1:3] == [("a", [1, 2, 3, 4, 5]), ("a", [6])] or (
        model.batches[1:] == [("a", [1, 2, 3, 4, 5]), ("b", [9]), ("a", [6])]
    )
    batcher.close(20)


def test_batcher_splits_large_requests(model):
    batcher = Batcher(model, max_batch_size=4, max_wait=0)
    values = list(range(1, 12))
    assert submit(batcher, *values).result(20)["y"].tolist() == [2 * v for v in values]
    assert [len(rows) for _, rows in model.batches] == [4, 4, 3]
    batcher.close(20)


def test_batcher_waits_up_to_max_wait(model):
    batcher = Batcher(model, max_batch_size=3, max_wait=30)
    started = time.monotonic()
    futures = [submit(batcher, value) for value in (1, 2, 3)]
    assert [int(future.result(20)["y"][0]) for future in futures] == [2, 4, 6]
    assert time.monotonic() - started < 20  # a full batch does not wait
    assert len(model.batches) == 1
    batcher.close(20)
    batcher = Batcher(model, max_batch_size=3, max_wait=0.05)
    assert submit(batcher, 4).result(20)["y"].tolist() == [8]
    batcher.close(20)


def test_abandoned_requests_fail_at_once(model):
    """Requests in the running batch fail too, because their results come too late."""
    batcher = Batcher(model, max_wait=0)
    futures = [hold(model, batcher), submit(batcher, 1)]
    batcher.abandon()
    for future in futures:
        with pytest.raises(RequestError, match="shutting down"):
            future.result(20)
    with pytest.raises(RequestError, match="shutting down"):
        submit(batcher, 2)
    model.gate.set()
    wait_until(lambda: not batcher.is_working, "the end of the worker")
    assert [rows for _, rows in model.batches] == [[0]]


def test_batcher_runs_unmergeable_requests_alone(model):
    batcher = Batcher(model, lambda name: name != "b", max_batch_size=2, max_wait=0)
    hold(model, batcher)
    futures = [submit(batcher, 1, 2, 3, signature="b") for _ in range(2)]
    model.gate.set()
    for future in futures:
        assert future.result(20)["y"].tolist() == [2, 4, 6]
    assert model.batches[1:] == [("b", [1, 2]), ("b", [3])] * 2
    batcher.close(20)


def test_batcher_pads_the_parts_of_a_request():
    def run(signature, columns):
        longest = max(columns["x"])
        ids = [[1] * x + [0] * (longest - x) for x in columns["x"]]
        texts = [[b"a"] * x + [b""] * (longest - x) for x in columns["x"]]
        return {"ids": np.array(ids, "int32"), "texts": np.array(texts, object)}

    expected = run("a", {"x": [1, 3, 2]})
    batcher = Batcher(run, lambda name: False, max_batch_size=1, max_wait=0)
    found = submit(batcher, 1, 3, 2).result(20)
    batcher.close(20)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_batcher_stops_a_request_with_too_many_values(model):
    batcher = Batcher(model, max_batch_size=2, max_wait=0, max_values=3)
    assert submit(batcher, 1, 2, 3).result(20)["y"].tolist() == [2, 4, 6]
    with pytest.raises(RequestError, match="at most 3 values") as error:
        submit(batcher, *range(4, 12)).result(20)
    assert error.value.status == 400
    batcher.close(20)
    assert len(model.batches) <= 5  # all 3 + 8 rows would take 2 + 4


def test_batcher_counts_the_padding_of_a_request():
    def run(signature, columns):
        longest = max(columns["x"])
        return {"y": np.ones((len(columns["x"]), longest, longest))}

    # Six batches of 2 values and one of 200 have 1400 values after padding.
    rows, shape = [1] * 12 + [10] * 2, (14, 10, 10)
    batcher = Batcher(run, max_batch_size=2, max_wait=0, max_values=1400)
    assert submit(batcher, *rows).result(20)["y"].shape == shape
    batcher.close(20)
    batcher = Batcher(run, max_batch_size=2, max_wait=0, max_values=1399)
    with pytest.raises(RequestError, match="at most 1,399 values"):
        submit(batcher, *rows).result(20)
    batcher.close(20)


def test_batcher_refuses_when_full_and_recovers(model):
    batcher = Batcher(model, max_wait=0, queue_size=4)
    first = hold(model, batcher)
    waiting = submit(batcher, 1, 2, 3)
    assert batcher.num_waiting == 3
    started = time.monotonic()
    with pytest.raises(RequestError) as refused:
        submit(batcher, 4, 5)
    assert time.monotonic() - started < 1
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (503, "1")
    last = submit(batcher, 4)  # one row still fits
    model.gate.set()
    for future in (first, waiting, last):
        future.result(20)
    assert submit(batcher, 1, 2, 3, 4).result(20)["y"].tolist() == [2, 4, 6, 8]
    batcher.close(20)


def test_batcher_exempts_requests_from_the_limit(model):
    batcher = Batcher(model, max_wait=0, queue_size=1)
    futures = [hold(model, batcher)]
    for values in ([1, 2], [3]):
        columns = {"x": values}
        futures.append(batcher.submit("warm-up", columns, 20, is_limited=False))
        # One row of other requests still fits, and only one.
        if values == [1, 2]:
            futures.append(submit(batcher, 4))
        with pytest.raises(RequestError, match="queue is full"):
            submit(batcher, 5)
    assert batcher.num_waiting == 4
    model.gate.set()
    found = [future.result(20)["y"].tolist() for future in futures]
    assert found == [[0], [2, 4], [8], [6]]
    batcher.close(20)


def test_batcher_isolates_failing_requests(model):
    batcher = Batcher(model, max_wait=0)
    hold(model, batcher)
    futures = [submit(batcher, 1), submit(batcher, -1), submit(batcher, 3)]
    model.gate.set()
    assert futures[0].result(20)["y"].tolist() == [2]
    assert futures[2].result(20)["y"].tolist() == [6]
    with pytest.raises(ValueError, match="minus one"):
        futures[1].result(20)
    assert batcher.is_open
    batcher.close(20)


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
def test_batcher_survives_odd_outputs(outputs):
    """Each list has the outputs of the batches of a request with two rows."""
    size = 2 // len(outputs)
    outputs = [*outputs, np.array([3.0])]
    batcher = Batcher(lambda *_: {"y": outputs.pop(0)}, max_batch_size=size)
    with pytest.raises((TypeError, ValueError)):
        submit(batcher, 1, 2).result(20)
    assert submit(batcher, 3).result(20)["y"].tolist() == [3]
    batcher.close(20)


def test_batcher_fails_only_the_request_whose_batches_do_not_fit(model):
    def run(signature, columns):
        shape = (len(columns["x"]), *[1] * (4 in columns["x"]))
        return {"y": np.full(shape, model(signature, columns)["y"].max())}

    batcher = Batcher(run, max_batch_size=3, max_wait=0)
    hold(model, batcher)
    # The first batch is 1, 2 and 3, the second one is 4 and 5.
    bad, good = submit(batcher, 1, 2, 3, 4), submit(batcher, 5)
    model.gate.set()
    with pytest.raises(ValueError, match="zip"):
        bad.result(20)
    assert good.result(20)["y"].tolist() == [[10]]
    assert batcher.is_working
    batcher.close(20)


@pytest.mark.parametrize("name", ["can_merge", "max_batch_size"])
def test_submit_raises_the_errors_of_a_signature(model, name):
    sizes = {"a": 2}
    batcher = Batcher(model, max_wait=0, **{name: sizes.__getitem__})
    with pytest.raises(KeyError, match="b"):
        submit(batcher, 1, signature="b")
    assert submit(batcher, 1).result(20)["y"].tolist() == [2]
    batcher.close(20)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_submit_refuses_requests_if_the_worker_has_ended(model, monkeypatch):
    batcher = Batcher(model)
    monkeypatch.delattr(Batcher, "_take")
    submit(batcher, 1)
    wait_until(lambda: not batcher.is_working, "the end of the worker", 20)
    with pytest.raises(RequestError) as error:
        submit(batcher, 2)
    assert error.value.status == 503


def test_batcher_drops_expired_and_cancelled_requests(model):
    batcher = Batcher(model, max_wait=0)
    hold(model, batcher)
    late, gone = submit(batcher, 1, timeout=0.01), submit(batcher, 2)
    kept = submit(batcher, 3)
    assert gone.cancel()
    assert batcher.num_waiting == 2  # cancelled rows take no room
    time.sleep(0.05)
    model.gate.set()
    assert kept.result(20)["y"].tolist() == [6]
    with pytest.raises(RequestError) as error:
        late.result(20)
    assert error.value.status == 504
    assert [rows for _, rows in model.batches] == [[0], [3]]
    batcher.close(20)


def test_close_finishes_queued_requests(model):
    batcher = Batcher(model, max_wait=0)
    hold(model, batcher)
    waiting = submit(batcher, 1)
    closing = threading.Thread(target=batcher.close, args=(20,))
    closing.start()
    wait_until(lambda: not batcher.is_open, "the batcher to close", 20, pause=0.001)
    with pytest.raises(RequestError, match="shutting down"):
        submit(batcher, 2)
    model.gate.set()
    closing.join(20)
    assert waiting.result(0)["y"].tolist() == [2]


def test_close_respects_its_timeout(model):
    batcher = Batcher(model, max_wait=0)
    hold(model, batcher)
    waiting = submit(batcher, 1)
    batcher.close(0.05)
    with pytest.raises(RequestError, match="shutting down"):
        waiting.result(0)


def test_batcher_serves_many_threads(model):
    seen = []
    batcher = Batcher(
        model, max_batch_size=8, max_wait=0.001, observe=lambda *each: seen.append(each)
    )
    wrong = []

    def client(number):
        for i in range(40):
            values = [number * 1000 + i, number * 1000 + i + 500][: 1 + i % 2]
            found = submit(batcher, *values).result(20)["y"].tolist()
            if found != [2 * value for value in values]:
                wrong.append((values, found))

    threads = [threading.Thread(target=client, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []
    # Each of 8 clients sends 20 requests with one row and 20 with two.
    assert sum(rows for _, rows, _ in seen) == 8 * 60
    assert max(rows for _, rows, _ in seen) > 1
    batcher.close(20)
