"""Warm-up of the served version, and its replacement by newer versions."""

import concurrent.futures
import time

from fake_model import PATH, FakeModel, ask, predict, served
from waiting import wait_until

from keras_transformer.serving.limits import Limits

WARM_UP = [("serving_default", {"inputs": [b"a"]})]


def test_server_is_ready_after_the_warm_up():
    model = FakeModel(seconds=1.0, warm_up=WARM_UP * 2)
    with served(model, Limits()) as port:
        assert ask(port, "GET", "/ready")[::2] == (503, {"status": "warming up"})
        assert ask(port, "GET", "/health")[0] == 200
        state = ask(port, "GET", PATH)[2]["model_version_status"][0]["state"]
        assert state == "LOADING"
        # A request during the warm-up waits for its turn.
        assert predict(port, {"inputs": ["a b"]})[0] == 200
        wait_until(lambda: ask(port, "GET", "/ready")[0] == 200, "readiness", 20)
        assert sum(model.batches) == 3


def test_warm_up_is_not_limited_by_the_queue(caplog):
    """All versions run their warm-up requests, which have more rows than fit."""
    warm_up = [("serving_default", {"inputs": [b"a", b"b", b"c"]})]
    old, new = FakeModel(warm_up=warm_up), FakeModel(warm_up=warm_up)
    new.version = 8
    limits = Limits(queue_size=2, max_texts=2, reload_interval=0.05)
    with served(old, limits) as port:
        wait_until(lambda: ask(port, "GET", "/ready")[0] == 200, "readiness", 20)
        assert old.batches == [3]
        old.newer = new
        wait_until(lambda: version_of(port) == "8", "the new version", 20)
        assert new.batches == [3]
        assert predict(port, {"inputs": ["a b", "c d"]})[0] == 200
    assert caplog.text == ""


def test_failed_warm_up_does_not_stop_the_server(caplog):
    warm_up = [("serving_default", {"inputs": [b"secret"]})]
    with served(FakeModel(warm_up=warm_up), Limits()) as port:
        wait_until(lambda: ask(port, "GET", "/ready")[0] == 200, "readiness", 20)
        assert predict(port, {"inputs": ["a b"]})[0] == 200
    (line,) = lines_of(caplog)
    assert line.startswith("warm-up of serving_default failed: Traceback in /home")


def test_shutdown_ends_the_warm_up_without_a_message(caplog):
    model = FakeModel(seconds=0.5, warm_up=WARM_UP * 5)
    with served(model, Limits()) as port:
        assert ask(port, "GET", "/ready")[::2] == (503, {"status": "warming up"})
    assert len(model.batches) < 5
    old, new = FakeModel(), FakeModel(seconds=0.5, warm_up=WARM_UP * 5)
    old.newer, new.version = new, 8
    with served(old, Limits(reload_interval=0.02)):
        wait_until(lambda: new.batches, "the warm-up of the new version", 20)
    assert len(new.batches) < 5
    assert caplog.text == ""


def test_newer_version_replaces_the_served_one():
    """Every request is answered, after the change by the new version."""
    old, new = FakeModel(seconds=0.02), FakeModel(seconds=0.02)
    new.version = 8
    new.warm_up = WARM_UP
    with served(old, Limits(reload_interval=0.05)) as port:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(predict, port, {"inputs": ["a b"]}) for _ in range(9)]
            old.newer = new
            wait_until(lambda: version_of(port) == "8", "the new version", 20)
            assert {future.result()[0] for future in asked} == {200}
        num_old = len(old.batches)
        assert predict(port, {"inputs": ["a b"]})[0] == 200
        assert len(old.batches) == num_old
        for number, status in ((7, 404), (8, 200)):
            path = f"{PATH}/versions/{number}"
            assert ask(port, "GET", path)[0] == status
            found = ask(port, "POST", f"{path}:predict", {"inputs": ["a b"]})
            assert found[0] == status
        assert b'"version": 8' in ask(port, "GET", "/")[2]


def test_broken_version_does_not_replace_the_served_one(caplog):
    model = FakeModel()
    model.newer = FakeModel()
    model.newer.version = 8
    tries = []

    def reload():
        tries.append(1)
        raise OSError("cut off")

    model.reload = reload
    with served(model, Limits(reload_interval=0.02)) as port:
        wait_until(lambda: tries, "the new version", 20)
        time.sleep(0.2)
        assert version_of(port) == "7"
    assert len(tries) == 1
    assert lines_of(caplog) == ["the new version cannot be loaded: cut off"]


def test_version_with_a_failing_warm_up_does_not_replace_the_served_one(caplog):
    good, bad = (("serving_default", {"inputs": [text]}) for text in (b"a", b"secret"))
    model, new = FakeModel(), FakeModel(warm_up=[bad, good])
    model.newer, new.version = new, 8
    with served(model, Limits(reload_interval=0.02)) as port:
        wait_until(lambda: caplog.records, "the failure", 20)
        time.sleep(0.2)
        assert version_of(port) == "7"
        assert predict(port, {"inputs": ["a b"]})[0] == 200
        # A later version is not affected.
        model.newer = FakeModel(warm_up=[good])
        model.newer.version = 9
        wait_until(lambda: version_of(port) == "9", "version 9", 20)
    assert len(lines_of(caplog)) == 1


def lines_of(caplog):
    """Returns the lines of the log, which has no tracebacks."""
    assert all(record.exc_info is None for record in caplog.records)
    return "\n".join(caplog.messages).split("\n")


def version_of(port):
    return ask(port, "GET", PATH)[2]["model_version_status"][0]["version"]
