"""Hosts, content types, response sizes, warm-up, reload and shutdown of the server.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import concurrent.futures
import json
import os
import signal
import socket
import threading
import time

import numpy as np
import pytest
from fake_model import FakeModel, ask, predict, queue_rows, served
from waiting import wait_until

from keras_transformer.serving.limits import Limits
from keras_transformer.serving.server import build_server, listen, serve

PATH = "/v1/models/fake"


@pytest.fixture(scope="module")
def port():
    with served(FakeModel(), Limits()) as port:
        yield port


def test_method_errors_name_the_allowed_methods(port):
    for method, path, allowed in (
        ("DELETE", "/", {"GET", "HEAD"}),
        ("GET", f"{PATH}:predict", {"POST"}),
        ("POST", PATH, {"GET"}),
    ):
        status, headers, _ = ask(port, method, path)
        assert (status, set(headers["Allow"].split(", "))) == (405, allowed)


def test_head_request_gets_no_content(port):
    for path in ("/", "/health", "/ready"):
        status, headers, content = ask(port, "HEAD", path)
        assert (status, content) == (200, b"")
        assert headers["Content-Length"] == ask(port, "GET", path)[1]["Content-Length"]


@pytest.mark.fault("F25", "malformed HTTP: status 400 with a JSON error")
def test_malformed_http_gets_a_json_error(port):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(b"GET / HTTP/1.1\r\nno header\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(4096), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert b"application/json" in head.lower()
    assert list(json.loads(body)) == ["error"]


@pytest.mark.fault("F25", "another Host or content type: status 403 or 415")
def test_requests_from_other_sites_are_refused(port):
    body = {"inputs": ["a b"]}
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "a b"):
        for method, path in (("POST", f"{PATH}:predict"), ("GET", "/metrics")):
            found = ask(port, method, path, body, {"Host": host})
            assert (found[0], list(found[2])) == (403, ["error"]), host
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:80", "10.0.0.7"):
        assert ask(port, "GET", "/health", headers={"Host": host})[0] == 200, host
    for kind in ("text/plain", "application/x-www-form-urlencoded", "", "json"):
        found = ask(port, "POST", f"{PATH}:predict", body, {"Content-Type": kind})
        assert (found[0], "application/json" in found[2]["error"]) == (415, True)
    kind = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert ask(port, "POST", f"{PATH}:predict", body, kind)[0] == 200


def test_server_accepts_allowed_hosts():
    with served(FakeModel(), Limits(), {"Translator.example", "a.example.:80"}) as port:
        for host, status in (
            ("translator.example:1", 200),
            ("A.example", 200),
            ("other.example", 403),
        ):
            assert ask(port, "GET", "/health", headers={"Host": host})[0] == status


@pytest.mark.fault(
    "F25", "an answer with too many values: status 400 before it is computed"
)
def test_answers_are_bounded_before_they_are_computed():
    model = FakeModel()
    with served(model, Limits(max_values=100)) as port:
        rows = {"signature_name": "translate_ids", "inputs": [[1] * 10] * 10}
        assert predict(port, rows)[0] == 200
        rows["inputs"].append([1] * 10)
        status, answer = predict(port, rows)
        assert (status, "at most 100 values" in answer["error"]) == (400, True)
    assert model.batches == [10]


def test_batch_size_applies_to_every_signature():
    model = FakeModel()
    with served(model, Limits(max_batch_size=4)) as port:
        rows = {"signature_name": "translate_ids", "inputs": [[1, 2]] * 10}
        assert predict(port, rows) == (200, {"outputs": [[2, 1]] * 10})
    assert model.batches == [4, 4, 2]


def test_formatting_does_not_block_other_requests():
    model = FakeModel()

    def run(signature, columns):
        shape = (len(columns["source_ids"]), 128, 128)
        return {"encoder_output": np.zeros(shape, "float32")}

    model.run = run
    with served(model, Limits()) as port:
        rows = {"signature_name": "translate_ids", "inputs": [[1]] * 64}
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            began = time.monotonic()
            answer = pool.submit(predict, port, rows)
            longest = 0.0
            while not answer.done():
                started = time.monotonic()
                assert ask(port, "GET", "/health")[0] == 200
                longest = max(longest, time.monotonic() - started)
            assert answer.result()[0] == 200
            total = time.monotonic() - began
    # If formatting the response blocked the server, one request would take almost as
    # long as the formatting.
    assert longest < total / 2


def test_rows_of_a_disconnected_client_are_dropped():
    model = FakeModel(seconds=1.0)
    with served(model, Limits(max_batch_size=1, max_wait=0)) as port:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            first = pool.submit(predict, port, {"inputs": ["a"]})
            wait_until(lambda: model.batches, "the first batch", 20)
            body = json.dumps({"inputs": ["b"] * 50}).encode()
            head = (
                f"POST {PATH}:predict HTTP/1.1\r\nHost: localhost\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            ).encode()
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(head + b"\r\n" + body)
                wait_until(lambda: queue_rows(port) == 50, "rows to wait", 20)
            assert first.result(20)[0] == 200
        wait_until(lambda: queue_rows(port) == 0, "rows to be dropped", 20)
    assert sum(model.batches) <= 2


def test_server_is_ready_after_the_warm_up():
    warm_up = [("serving_default", {"inputs": [b"a"]})] * 2
    model = FakeModel(seconds=1.0, warm_up=warm_up)
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
    warm_up = [("serving_default", {"inputs": [b"a"]})] * 5
    model = FakeModel(seconds=0.5, warm_up=warm_up)
    with served(model, Limits()) as port:
        assert ask(port, "GET", "/ready")[::2] == (503, {"status": "warming up"})
    assert len(model.batches) < 5
    old, new = FakeModel(), FakeModel(seconds=0.5, warm_up=warm_up)
    old.newer, new.version = new, 8
    with served(old, Limits(reload_interval=0.02)):
        wait_until(lambda: new.batches, "the warm-up of the new version", 20)
    assert len(new.batches) < 5
    assert caplog.text == ""


def test_newer_version_replaces_the_served_one():
    """Every request is answered, after the change by the new version."""
    old, new = FakeModel(seconds=0.02), FakeModel(seconds=0.02)
    new.version = 8
    new.warm_up = [("serving_default", {"inputs": [b"a"]})]
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


def test_draining_server_is_not_ready():
    found = []
    model = FakeModel(seconds=2.0)
    listening = listen("127.0.0.1", 0)
    server = build_server(model, Limits())
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    wait_until(lambda: server.started, "the server", 60)
    port = listening.getsockname()[1]
    asking = threading.Thread(
        target=lambda: found.append(predict(port, {"inputs": ["a b"]}))
    )
    asking.start()
    wait_until(lambda: model.batches, "the batch", 20)
    server.should_exit = True
    wait_until(lambda: ask(port, "GET", "/ready")[0] == 503, "draining", 20)
    assert ask(port, "GET", "/ready")[2] == {"status": "shutting down"}
    assert ask(port, "GET", "/health")[0] == 200
    status, headers, answer = ask(port, "POST", f"{PATH}:predict", {"inputs": ["c"]})
    assert (status, headers["Retry-After"]) == (503, "5")
    assert answer == {"error": "The server is shutting down"}
    asking.join(20)
    thread.join(20)
    assert found[0][0] == 200
    assert not thread.is_alive()


def test_serve_applies_its_limits_and_accepts_its_hosts():
    answers = {}

    def visit(url):
        port = int(url.split(":")[2].strip("/"))
        try:
            for name in ("localhost", "www.example.org", "other.example.org"):
                headers = {"Host": name}
                answers[name] = ask(port, "GET", "/health", headers=headers)[0]
            for count in (3, 4):
                answers[count] = predict(port, {"inputs": ["a"] * count})[0]
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    def started(url):
        threading.Thread(target=visit, args=(url,)).start()

    limits, hosts = Limits(max_texts=3), ["www.example.org"]
    serve(FakeModel(), "127.0.0.1", 0, limits, started, hosts)
    names = {"localhost": 200, "www.example.org": 200, "other.example.org": 403}
    assert answers == {**names, 3: 200, 4: 400}


def test_query_parameters_do_not_select_a_version():
    with served(FakeModel(), Limits()) as port:
        assert ask(port, "GET", f"{PATH}?version=3")[0] == 200
        assert ask(port, "GET", f"{PATH}/versions/3")[0] == 404


def test_host_names_that_cannot_be_encoded_are_reported():
    with pytest.raises(OSError, match=r"a\.\.b:0"):
        listen("a..b", 0)
