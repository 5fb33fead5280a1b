"""The server over HTTP, with a model that does not need TensorFlow.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import concurrent.futures
import contextlib
import http.client
import json
import re
import socket
import threading
import time

import pytest
from fake_model import FakeModel, ask, predict, served
from waiting import wait_until

from keras_transformer.serving.limits import Limits

LIMITS = Limits(
    max_texts=5,
    queue_size=20,
    max_text_length=200,
    max_body_bytes=20_000,
    body_timeout=0.7,
    idle_timeout=0.7,
    request_timeout=5,
    max_connections=60,
)
PATH = "/v1/models/fake"


@pytest.fixture(scope="module")
def port():
    with served(FakeModel(), LIMITS) as port:
        yield port


def test_predict_accepts_rows_and_columns(port):
    """Covers the forms in TF-Serving's documentation, with and without input names."""
    status, answer = predict(port, {"inputs": ["a b", "c"]})
    assert status == 200
    assert answer["outputs"]["translations"] == ["b a", "c"]
    assert answer["outputs"]["scores"] == pytest.approx([-0.3, -0.1])
    status, answer = predict(port, {"instances": ["a b", "c"]})
    assert status == 200
    assert [row["translations"] for row in answer["predictions"]] == ["b a", "c"]
    assert answer["predictions"][0]["scores"] == pytest.approx(-0.3)
    for body in (
        {"instances": [{"inputs": "a b"}]},
        {"instances": [{"b64": "YSBi"}]},
        {"signature_name": "serving_default", "instances": ["a b"]},
        {"signature_name": "", "instances": ["a b"]},
    ):
        assert predict(port, body)[1]["predictions"][0]["translations"] == "b a"
    for inputs in ({"inputs": ["a b"]}, ["a b"]):
        assert predict(port, {"inputs": inputs})[1]["outputs"]["translations"] == [
            "b a"
        ]
    ids = {"signature_name": "translate_ids", "instances": [[1, 2], [3, 4]]}
    # A single output is returned without its name.
    assert predict(port, ids) == (200, {"predictions": [[2, 1], [4, 3]]})
    ids = {"signature_name": "translate_ids", "inputs": {"source_ids": [[1, 2]]}}
    assert predict(port, ids) == (200, {"outputs": [[2, 1]]})
    two = {"inputs": "a b", "targets": "c"}
    status, answer = predict(port, {"signature_name": "attend", "instances": [two]})
    assert answer["predictions"][0]["source_pieces"] == ["a", " b"]
    versioned = ask(port, "POST", f"{PATH}/versions/7:predict", {"inputs": ["a"]})
    assert versioned[0] == 200


def test_server_reports_status_and_metadata(port):
    for path in (PATH, f"{PATH}/versions/7"):
        status, _, answer = ask(port, "GET", path)
        assert status == 200
        assert answer["model_version_status"] == [
            {
                "version": "7",
                "state": "AVAILABLE",
                "status": {"error_code": "OK", "error_message": ""},
            }
        ]
        status, _, answer = ask(port, "GET", f"{path}/metadata")
        assert status == 200
        spec = {"name": "fake", "signature_name": "", "version": "7"}
        assert answer["model_spec"] == spec
        assert "signature_def" in answer["metadata"]
    assert ask(port, "GET", "/health")[::2] == (200, {"status": "ok"})
    assert ask(port, "GET", "/ready")[::2] == (200, {"status": "ready"})


def test_metrics_count_requests_and_rows(port):
    def value(text, name):
        found = [line for line in text.splitlines() if line.startswith(name + " ")]
        return float(found[0].split()[-1]) if found else 0.0

    rows = 'keras_transformer_rows_total{signature="serving_default"}'
    bad = 'keras_transformer_rejected_total{reason="invalid"}'
    answered = 'keras_transformer_requests_total{kind="predict",status="200"}'
    read = 'keras_transformer_requests_total{kind="metrics",status="200"}'
    before = ask(port, "GET", "/monitoring/prometheus/metrics")[2].decode()
    predict(port, {"inputs": ["a", "b", "c"]})
    predict(port, {"inputs": 3})
    _, headers, content = ask(port, "GET", "/metrics")
    after = content.decode()
    assert headers["Content-Type"].startswith("text/plain; version=")
    assert value(after, rows) == value(before, rows) + 3
    assert value(after, bad) == value(before, bad) + 1
    assert value(after, answered) == value(before, answered) + 1
    assert value(after, read) == value(before, read) + 1
    assert value(after, "keras_transformer_queue_rows") == 0
    assert "process_resident_memory_bytes" in after


BAD = {
    "": "empty",
    "{": "JSON Parse error",
    "[]": "must be an object",
    "null": "must be an object",
    '{"instances": ["a"], "inputs": ["a"]}': "either 'instances' or",
    "{}": "either 'instances' or",
    '{"instances": []}': "non-empty list",
    '{"instances": "a"}': "non-empty list",
    '{"instances": [1]}': "must be a string. Received: 1",
    '{"instances": [null]}': "Received: null",
    '{"instances": [true]}': "Received: true",
    '{"instances": [["a"]]}': "Received: a list",
    '{"instances": [{"inputs": "a"}, "b"]}': "either all objects",
    '{"instances": [{"input": "a"}]}': "Missing named input: inputs",
    '{"instances": [{"inputs": "a", "more": 1}]}': 'Unknown named input: "more"',
    '{"instances": [{"b64": "+/8=+/8="}]}': "must be base64",
    '{"instances": [{"b64": "+/8!"}]}': "must be base64",
    '{"instances": [{"b64": "+"}]}': "must be base64",
    '{"instances": [{"b64": 1}]}': "must be base64",
    '{"instances": ["\\ud800 a"]}': "unpaired surrogate",
    '{"instances": ["a \\udc00\\ud800"]}': "unpaired surrogate",
    '{"inputs": {"inputs": "a"}}': "non-empty list",
    '{"inputs": []}': "non-empty list",
    '{"inputs": ["a"], "model": 1}': 'Unknown key in request: "model"',
    '{"inputs": [NaN]}': "invalid number",
    '{"inputs": [' + "9" * 5000 + "]}": "invalid number",
    '{"inputs": ' + "[" * 9000 + "}": "nested too deeply",
    '{"signature_name": "none", "inputs": ["a"]}': "none",
    '{"signature_name": 1, "inputs": ["a"]}': "must be a string value",
    '{"signature_name": "a\\nb", "inputs": ["a"]}': r'"a\nb" not found',
    '{"signature_name": "\\ud800", "inputs": ["a"]}': r'"\ud800" not found',
    '{"inputs": ["a"], "\\ud800": 1}': "Unknown key in request",
    '{"signature_name": "' + "\\ud800" * 99 + '"}': '..." not found',
    '{"inputs": ["a"], "' + "\\ud800" * 99 + '": 1}': "Unknown key in request",
    '{"signature_name": "attend", "instances": ["a"]}': "keys: inputs, targets",
    '{"signature_name": "attend", "inputs": ["a"]}': "keys: inputs, targets",
    '{"signature_name": "attend", "inputs": {"inputs": ["a"], "targets": []}}': (
        "non-empty list"
    ),
    '{"signature_name": "attend", "inputs": {"inputs": ["a"], "targets": ["b", ""]}}': (
        "same number of rows"
    ),
    '{"signature_name": "translate_ids", "instances": [[1, 2], [3]]}': "equal length",
    '{"signature_name": "translate_ids", "instances": [[1.5]]}': "Received: 1.5",
    '{"signature_name": "translate_ids", "instances": [[9999999999]]}': "Received: 999",
    '{"signature_name": "translate_ids", "inputs": [[' + "9" * 99 + "]]}": "99...",
    '{"signature_name": "translate_ids", "instances": [[true]]}': "32-bit",
    '{"signature_name": "translate_ids", "instances": [[]]}': "at least one column",
    '{"signature_name": "translate_ids", "instances": [3]}': "lists of equal length",
    json.dumps({"inputs": ["a"] * 6}): "at most 5 rows. Received: 6",
    json.dumps({"inputs": ["a" * 201]}): "at most 200 characters. Received: 201",
}


@pytest.mark.fault("F25", "status 400 with one line")
@pytest.mark.parametrize("body", BAD)
def test_predict_explains_bad_requests(port, body):
    status, answer = predict(port, body)
    assert status == 400
    assert list(answer) == ["error"]
    assert BAD[body] in answer["error"]
    assert len(answer["error"]) < 200


def test_predict_handles_invalid_unicode(port):
    status, answer = predict(port, b'{"inputs": ["\xff"]}')
    assert (status, answer) == (400, {"error": "JSON Parse error: not UTF-8"})
    assert predict(port, {"inputs": ["\0 猫 \u202e"]})[0] == 200
    # JSON writes a character beyond U+FFFF as two surrogates.
    answer = predict(port, '{"inputs": ["\\ud83d\\ude00 a"]}')[1]
    assert answer["outputs"]["translations"] == ["a 😀"]


def test_unknown_paths_are_errors(port):
    for method, path, status, text in (
        (
            "GET",
            "/v1/models/other",
            404,
            "Servable not found for request: Latest(other)",
        ),
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
        ("DELETE", "/", 405, "Malformed"),
    ):
        found, _, answer = ask(port, method, path)
        assert (found, text in answer["error"]) == (status, True), (path, answer)


@pytest.mark.fault("F25", "status 413; the server stays up")
def test_predict_refuses_large_bodies(port):
    large = json.dumps({"inputs": ["a" * 30_000]})
    status, headers, answer = ask(port, "POST", f"{PATH}:predict", large)
    assert status == 413 and headers["Connection"] == "close"
    assert "at most 20,000 bytes" in answer["error"]

    # The client gets the error even if it sends much more before it reads.
    for body in (b"x" * 20_000_000, (b"x" * 1000 for _ in range(20_000))):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        kind = {"Content-Type": "application/json"}
        connection.request("POST", f"{PATH}:predict", body, kind)
        assert connection.getresponse().status == 413
        connection.close()
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


def slow_client(port, pieces, pause):
    """Sends pieces with pauses. Returns the seconds taken and the bytes received."""
    started = time.monotonic()
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.settimeout(pause)
        for piece in [*pieces, *[b""] * 1000]:
            with contextlib.suppress(OSError):
                client.sendall(piece)
            try:
                received += client.recv(4096)
                break
            except TimeoutError:
                continue
            except OSError:
                break
    return time.monotonic() - started, received


HEAD = f"POST {PATH}:predict HTTP/1.1\r\nHost: localhost\r\n".encode()
HEAD += b"Content-Type: application/json\r\nContent-Length: 1000\r\n"


@pytest.mark.fault("F25", "status 408 or disconnected")
@pytest.mark.parametrize(
    ("pieces", "answer"),
    [
        ([], b""),  # sends nothing
        ([HEAD[i : i + 1] for i in range(len(HEAD))], b""),  # headers byte by byte
        ([HEAD + b"\r\n", *[b"x"] * 900], b"HTTP/1.1 408"),  # a body byte by byte
        ([HEAD + b"\r\n"], b"HTTP/1.1 408"),
    ],
)
def test_slow_clients_are_disconnected(port, pieces, answer):
    seconds, received = slow_client(port, pieces, 0.05)
    assert received[:12] == answer
    assert 0.5 < seconds < 6  # the timeouts are 0.7 s


def test_slow_second_request_is_disconnected(port):
    first = f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(first)
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        started = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - started < 10:
                client.sendall(b"G")
                time.sleep(0.05)
        assert time.monotonic() - started < 6


def test_disconnected_client_is_counted(port, caplog):
    def gone():
        text = ask(port, "GET", "/metrics")[2].decode()
        name = r'keras_transformer_rejected_total\{reason="gone"\}'
        found = re.search(rf"{name} (\S+)", text)
        return float(found[1]) if found else 0.0

    before = gone()
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(HEAD + b"\r\nx")
        time.sleep(0.2)
    wait_until(lambda: gone() == before + 1, "the client to be counted")
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
    limits = Limits(max_batch_size=8)
    with served(model, limits) as port:
        texts = [f"{number} is" for number in range(40)]

        def one(text):
            return predict(port, {"inputs": [text]})[1]["outputs"]["translations"]

        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            found = [*pool.map(one, texts)]
    assert found == [[f"is {number}"] for number in range(40)]
    assert sum(model.batches) == 40
    assert max(model.batches) <= 8
    assert len(model.batches) < 30


def test_server_refuses_overload_and_recovers():
    model = FakeModel(seconds=0.3)
    limits = Limits(max_batch_size=2, queue_size=4, max_texts=4)
    with served(model, limits) as port:

        def one(_):
            started = time.monotonic()
            status, headers, answer = ask(
                port, "POST", "/v1/models/fake:predict", {"inputs": ["a b"]}
            )
            return (
                status,
                time.monotonic() - started,
                headers.get("Retry-After"),
                answer,
            )

        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            found = [*pool.map(one, range(24))]
        refused = [each for each in found if each[0] == 503]
        assert {each[0] for each in found} == {200, 503}
        assert len(refused) >= 10
        for _, seconds, retry_after, answer in refused:
            assert retry_after == "1" and "queue is full" in answer["error"]
            assert seconds < 2
        assert predict(port, {"inputs": ["a b"]})[0] == 200


def test_predict_times_out():
    limits = Limits(request_timeout=0.2)
    with served(FakeModel(seconds=1.0), limits) as port:
        assert predict(port, {"inputs": ["a"]}) == (504, {"error": "Deadline exceeded"})


def test_shutdown_finishes_requests_in_flight():
    found, model = [], FakeModel(seconds=0.8)
    with served(model, Limits()) as port:
        asking = threading.Thread(
            target=lambda: found.append(predict(port, {"inputs": ["a b"]}))
        )
        asking.start()
        wait_until(lambda: model.batches, "the start of the batch")
    asking.join(20)
    assert found[0][1]["outputs"]["translations"] == ["b a"]
