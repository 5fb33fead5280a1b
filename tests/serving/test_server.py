"""The server over HTTP, with a model that does not need TensorFlow.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import concurrent.futures
import contextlib
import http.client
import json
import socket
import time

import numpy as np
import pytest
from fake_model import LIMITS, PATH, FakeModel, ask, metric, predict, queue_rows, served
from waiting import wait_until

from keras_transformer.serving import app as serving_app
from keras_transformer.serving.limits import Limits
from keras_transformer.serving.server import listen

ROW = {"scores": pytest.approx(-0.3), "translations": "b a"}
COLUMNS = {"scores": [pytest.approx(-0.3)], "translations": ["b a"]}
IDS = {"signature_name": "translate_ids"}


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ({"inputs": ["a b"]}, {"outputs": COLUMNS}),
        ({"instances": ["a b"]}, {"predictions": [ROW]}),
        ({"instances": [{"inputs": "a b"}]}, {"predictions": [ROW]}),
        ({"instances": [{"b64": "YSBi"}]}, {"predictions": [ROW]}),
        ({"signature_name": "", "inputs": {"inputs": ["a b"]}}, {"outputs": COLUMNS}),
        (
            {"signature_name": "serving_default", "inputs": ["a b"]},
            {"outputs": COLUMNS},
        ),
        # A single output is returned without its name.
        ({**IDS, "instances": [[1, 2], [3, 4]]}, {"predictions": [[2, 1], [4, 3]]}),
        ({**IDS, "inputs": {"source_ids": [[1, 2]]}}, {"outputs": [[2, 1]]}),
    ],
)
def test_predict_accepts_rows_and_columns(port, body, answer):
    """Covers the forms in TF-Serving's documentation, with and without input names."""
    assert predict(port, body) == (200, answer)
    found = ask(port, "POST", f"{PATH}/versions/7:predict", body)
    assert found[::2] == (200, answer)


def test_predict_takes_pairs_of_texts(port):
    pair = {"inputs": "a b", "targets": "c"}
    _, answer = predict(port, {"signature_name": "attend", "instances": [pair]})
    assert answer["predictions"][0]["source_pieces"] == ["a", " b"]


def test_server_reports_status_and_metadata(port):
    for path in (PATH, f"{PATH}/versions/7", f"{PATH}?version=3"):
        status, _, answer = ask(port, "GET", path)
        state = {"error_code": "OK", "error_message": ""}
        expected = {"version": "7", "state": "AVAILABLE", "status": state}
        assert (status, answer) == (200, {"model_version_status": [expected]})
    for path in (PATH, f"{PATH}/versions/7"):
        status, _, answer = ask(port, "GET", f"{path}/metadata")
        spec = {"name": "fake", "signature_name": "", "version": "7"}
        assert (status, answer["model_spec"]) == (200, spec)
        assert "signature_def" in answer["metadata"]
    for path, state in (("/health", "ok"), ("/ready", "ready")):
        assert ask(port, "GET", path)[::2] == (200, {"status": state})
    for path in ("/", "/health", "/ready"):
        status, headers, content = ask(port, "HEAD", path)
        assert (status, content) == (200, b"")
        assert headers["Content-Length"] == ask(port, "GET", path)[1]["Content-Length"]


def test_metrics_count_requests_and_rows(port):
    added = {
        'rows_total{signature="serving_default"}': 3,
        'rejected_total{reason="invalid"}': 1,
        'requests_total{kind="predict",status="200"}': 1,
        'request_seconds_count{kind="predict"}': 2,
        "batch_rows_sum": 3,
    }
    before = {name: metric(port, name) for name in added}
    predict(port, {"inputs": ["a", "b", "c"]})
    predict(port, {"inputs": 3})
    assert {name: metric(port, name) - before[name] for name in added} == added
    assert queue_rows(port) == 0
    _, headers, content = ask(port, "GET", "/monitoring/prometheus/metrics")
    assert headers["Content-Type"].startswith("text/plain; version=")
    assert b"process_resident_memory_bytes" in content


def test_predict_handles_invalid_unicode(port):
    status, answer = predict(port, b'{"inputs": ["\xff"]}')
    assert (status, answer) == (400, {"error": "JSON Parse error: not UTF-8"})
    assert predict(port, {"inputs": ["\0 猫 \u202e"]})[0] == 200
    # JSON writes a character beyond U+FFFF as two surrogates.
    answer = predict(port, '{"inputs": ["\\ud83d\\ude00 a"]}')[1]
    assert answer["outputs"]["translations"] == ["a 😀"]


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/v1/models/other", 404, "request: Latest(other)"),
        ("POST", "/v1/models/other:predict", 404, "request: Latest(other)"),
        ("GET", "/v1/models/other/metadata", 404, "request: Latest(other)"),
        ("POST", f"{PATH}/versions/8:predict", 404, "request: Specific(fake, 8)"),
        ("GET", f"{PATH}/versions/8", 404, "request: Specific(fake, 8)"),
        ("GET", f"{PATH}/versions/8/metadata", 404, "request: Specific(fake, 8)"),
        ("GET", f"{PATH}/", 404, "Malformed request: GET"),
        ("POST", f"{PATH}:classify", 400, "Malformed request: POST"),
        ("GET", "/v2/x", 404, "Malformed request"),
        ("GET", "/../../etc/passwd", 404, "Malformed request"),
        ("GET", "/docs", 404, "Malformed"),
        ("GET", "/openapi.json", 404, "Malformed"),
        ("GET", f"{PATH}:predict", 405, "Malformed"),
        ("POST", PATH, 405, "Malformed"),
        ("DELETE", "/", 405, "Malformed"),
    ],
)
def test_unknown_paths_are_errors(port, method, path, status, text):
    found, headers, answer = ask(port, method, path)
    assert (found, text in answer["error"]) == (status, True), answer
    if status == 405:
        allowed = {PATH: "GET", f"{PATH}:predict": "POST", "/": "GET, HEAD"}
        assert {*headers["Allow"].split(", ")} == {*allowed[path].split(", ")}


@pytest.mark.fault("F25", "status 413; the server stays up")
def test_predict_refuses_large_bodies(port):
    large = json.dumps({"inputs": ["a" * 30_000]})
    status, headers, answer = ask(port, "POST", f"{PATH}:predict", large)
    assert status == 413 and headers["Connection"] == "close"
    assert "at most 20,000 bytes" in answer["error"]
    # The client gets the error even if it sends much more before it reads.
    for body in (b"x" * 20_000_000, (b"x" * 1000 for _ in range(20_000))):
        assert ask(port, "POST", f"{PATH}:predict", body)[0] == 413
    assert ask(port, "GET", "/health")[0] == 200


@pytest.mark.fault("F25", "status 500 without a path or traceback")
def test_internal_errors_reveal_nothing(port, caplog):
    status, headers, answer = ask(
        port, "POST", f"{PATH}:predict", {"inputs": ["secret"]}
    )
    assert (status, answer) == (500, {"error": "Internal error"})
    assert "secret.py" in caplog.text  # but the log names it
    assert "server" not in headers
    assert headers["X-Content-Type-Options"] == "nosniff"


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
    with served(FakeModel(), LIMITS, {"Translator.example", "a.example.:80"}) as port:
        for host, status in (
            ("translator.example:1", 200),
            ("A.example", 200),
            ("other.example", 403),
        ):
            assert ask(port, "GET", "/health", headers={"Host": host})[0] == status
    with pytest.raises(OSError, match=r"a\.\.b:0"):
        listen("a..b", 0)


HEAD = f"POST {PATH}:predict HTTP/1.1\r\nHost: localhost\r\n".encode()
HEAD += b"Content-Type: application/json\r\nContent-Length: 1000\r\n"
GET = f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


@pytest.mark.fault("F25", "status 408 or disconnected")
@pytest.mark.parametrize(
    ("pieces", "answer"),
    [
        ([], b""),  # sends nothing
        ([HEAD[i : i + 1] for i in range(len(HEAD))], b""),  # headers byte by byte
        ([GET, *[b"G"] * 900], b"HTTP/1.1 200"),  # a second request byte by byte
        ([HEAD + b"\r\n", *[b"x"] * 900], b"HTTP/1.1 408"),  # a body byte by byte
        ([HEAD + b"\r\n"], b"HTTP/1.1 408"),
    ],
)
def test_slow_clients_are_disconnected(port, monkeypatch, pieces, answer):
    monkeypatch.setattr(serving_app, "_DISCARD_SECONDS", 0.5)
    started = time.monotonic()
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.settimeout(0.05)
        for piece in [*pieces, *[b""] * 1000]:
            try:
                client.sendall(piece)
                if not (part := client.recv(4096)):
                    break
                received += part
            except TimeoutError:
                continue
            except OSError:
                break
    assert received[:12] == answer
    assert 0.5 < time.monotonic() - started < 6  # the timeouts are 0.7 and 0.5 s


def test_disconnected_client_is_counted(port, caplog):
    name = 'rejected_total{reason="gone"}'
    before = metric(port, name)
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(HEAD + b"\r\nx")
        time.sleep(0.2)
    wait_until(lambda: metric(port, name) == before + 1, "the client to be counted")
    assert caplog.text == ""


@pytest.mark.fault("F25", "30 slow clients do not block others")
def test_slow_clients_do_not_block_others(port):
    with contextlib.ExitStack() as stack:
        for _ in range(30):
            client = socket.create_connection(("127.0.0.1", port))
            stack.enter_context(client)
            client.sendall(HEAD + b"\r\nx")
        started = time.monotonic()
        assert predict(port, {"inputs": ["a"]})[0] == 200
        assert time.monotonic() - started < 2


@pytest.mark.fault("F25", "connections above the limit are closed")
def test_connections_above_the_limit_are_closed():
    with served(FakeModel(), LIMITS.model_copy(update={"max_connections": 4})) as port:
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            time.sleep(0.1)
            with pytest.raises((OSError, http.client.HTTPException)):
                ask(port, "GET", "/health")

        def is_healthy():
            with contextlib.suppress(OSError, http.client.HTTPException):
                return ask(port, "GET", "/health")[0] == 200

        wait_until(is_healthy, "the end of the other connections")


def test_concurrent_requests_share_batches():
    model = FakeModel(seconds=0.05)
    with served(model, Limits(max_batch_size=8)) as port:

        def one(number):
            return predict(port, {"inputs": [f"{number} is"]})[1]["outputs"]

        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            found = [each["translations"] for each in pool.map(one, range(40))]
        rows = predict(port, {**IDS, "inputs": [[1, 2]] * 10})
    assert found == [[f"is {number}"] for number in range(40)]
    assert sum(model.batches) == 50
    assert max(model.batches) <= 8 and len(model.batches) < 32
    # The limit also applies to requests that share no batch.
    assert rows == (200, {"outputs": [[2, 1]] * 10}) and model.batches[-2:] == [8, 2]


def test_server_respects_the_batch_size_of_the_export():
    model = FakeModel()
    model.limits = model.limits.model_copy(update={"max_batch_size": 2})
    with served(model, Limits()) as port:
        assert predict(port, {"inputs": ["a"] * 5})[0] == 200
    assert model.batches == [2, 2, 1]


def test_server_refuses_overload_and_recovers():
    limits = Limits(max_batch_size=2, queue_size=4, max_texts=4)
    with served(FakeModel(seconds=0.3), limits) as port:

        def one(_):
            started = time.monotonic()
            found = ask(port, "POST", f"{PATH}:predict", {"inputs": ["a b"]})
            return *found, time.monotonic() - started

        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            found = [*pool.map(one, range(24))]
        refused = [each for each in found if each[0] == 503]
        assert {each[0] for each in found} == {200, 503}
        assert len(refused) >= 10
        for _, headers, answer, seconds in refused:
            assert headers["Retry-After"] == "1" and "queue is full" in answer["error"]
            assert seconds < 2
        assert predict(port, {"inputs": ["a b"]})[0] == 200


def test_predict_times_out():
    with served(FakeModel(seconds=1.0), Limits(request_timeout=0.2)) as port:
        assert predict(port, {"inputs": ["a"]}) == (504, {"error": "Deadline exceeded"})


@pytest.mark.fault(
    "F25", "an answer with too many values: status 400 before it is computed"
)
def test_answers_are_bounded_before_they_are_computed():
    model = FakeModel()
    with served(model, Limits(max_values=100)) as port:
        assert predict(port, {**IDS, "inputs": [[1] * 10] * 10})[0] == 200
        status, answer = predict(port, {**IDS, "inputs": [[1] * 10] * 11})
        assert (status, "at most 100 values" in answer["error"]) == (400, True)
    assert model.batches == [10]


def test_formatting_does_not_block_other_requests():
    model = FakeModel()

    def run(signature, columns):
        shape = (len(columns["source_ids"]), 128, 128)
        return {"encoder_output": np.zeros(shape, "float32")}

    model.run = run
    pool = concurrent.futures.ThreadPoolExecutor(1)
    with served(model, Limits()) as port, pool:
        began = time.monotonic()
        answer = pool.submit(predict, port, {**IDS, "inputs": [[1]] * 64})
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
            head = HEAD.replace(b"1000", str(len(body)).encode())
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(head + b"\r\n" + body)
                wait_until(lambda: queue_rows(port) == 50, "rows to wait", 20)
            assert first.result(20)[0] == 200
        wait_until(lambda: queue_rows(port) == 0, "rows to be dropped", 20)
    assert sum(model.batches) <= 2
