"""Hostile clients over real sockets. The server keeps answering other clients.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import contextlib
import json
import random
import socket
import time
from concurrent import futures

import pytest
from fake_model import PATH, FakeModel, ask, predict, served
from fuzzing import ANY_TEXT, NASTY, encodable, fuzz
from hypothesis import strategies as st

from keras_transformer.serving import app
from keras_transformer.serving.limits import Limits

LIMITS = Limits(
    max_texts=300,
    max_text_length=1_000_000,
    max_body_bytes=2_000_000,
    body_timeout=0.7,
    idle_timeout=0.7,
    request_timeout=5,
    max_connections=8,
)
JSON = "Content-Type: application/json"


@pytest.fixture(scope="module")
def port():
    with served(FakeModel(), LIMITS) as port:
        yield port


def talk(port, data):
    """Sends raw bytes and returns all bytes received until the server disconnects.

    A server that neither answers nor disconnects is a `TimeoutError`.
    """
    received = b""
    client = socket.create_connection(("127.0.0.1", port), timeout=60)
    with client, contextlib.suppress(ConnectionError):
        client.sendall(data)
        while part := client.recv(1 << 16):
            received += part
    return received


def head(*headers, path=f"{PATH}:predict", method="POST"):
    """Returns the request line and the headers of a request, as bytes."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", JSON, *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


@pytest.mark.fault("F25", "status 400 or disconnected; no internals are revealed")
@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00" + bytes(200),  # TLS
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET " + b"/" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        head("X: " + "y" * 200_000),
        head(*[f"X{n}: y" for n in range(20_000)]),
        head("Content-Length: " + "9" * 5000),
        head("Content-Length: -1"),
        head("Content-Length: 5", "Content-Length: 6") + b"abcdef",
        head("Content-Length: 4", "Transfer-Encoding: chunked") + b"0\r\n\r\nGET /x",
        head("Transfer-Encoding: gzip"),
        head("Transfer-Encoding: chunked") + b"FFFFFFFFFFFFFFFFFF\r\nx",
        head("Transfer-Encoding: chunked") + b"-5\r\nhello\r\n0\r\n\r\n",
        head("Expect: 100-continue", "Content-Length: 10"),
        head("Upgrade: websocket", "Connection: Upgrade", method="GET", path="/"),
        head(path="/%00%ff/../../etc/passwd", method="GET"),
        head(path="http://127.0.0.1:22/", method="GET"),
        head(method="PRI * HTTP/2.0"),
    ],
    ids=range(17),
)
def test_server_survives_malformed_requests(port, data, caplog, monkeypatch):
    monkeypatch.setattr(app, "_DISCARD_SECONDS", 0.5)
    answer = talk(port, data)
    status = int(answer.split(b" ", 2)[1]) if answer else None
    assert status in (None, 100, 200, 400, 404, 405, 408, 413, 414, 431, 501)
    for word in (b"Traceback", b".py", b"site-packages", b"uvicorn", b"root:"):
        assert word not in answer
    assert "Traceback" not in caplog.text
    assert predict(port, {"inputs": ["a b"]})[1]["outputs"]["translations"] == ["b a"]


@pytest.mark.fault("F25", "malformed HTTP: status 400 with a JSON error")
def test_malformed_http_gets_a_json_error(port):
    answer = talk(port, b"GET / HTTP/1.1\r\nno header\r\n\r\n")
    headers, _, body = answer.partition(b"\r\n\r\n")
    assert headers.startswith(b"HTTP/1.1 400")
    assert b"application/json" in headers.lower()
    assert list(json.loads(body)) == ["error"]


@pytest.mark.fault("X05", "random bytes over sockets: the server stays up")
def test_server_survives_random_bytes(port, caplog):
    draw = random.Random(1)
    good = head("Content-Length: 19", "Connection: close") + b'{"inputs": ["a b"]}'
    texts = []
    for number in range(60):
        if number % 2:
            data = bytearray(good)
            for _ in range(draw.randint(0, 3)):
                data[draw.randrange(len(data))] = draw.randrange(256)
            data = bytes(data)
        else:
            data = draw.randbytes(draw.randint(1, 300)) + b"\r\n\r\n"
        texts.append(data)
    with futures.ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda data: talk(port, data), texts)
        # The status follows "HTTP/1.1 " (9 characters). No response gives b"".
        statuses = {answer[9:12] for answer in answers}
    refusals = {b"400", b"403", b"404", b"405", b"408", b"413", b"415"}
    assert {b"200", b"400"} <= statuses <= {b"", b"200", *refusals}
    assert "Traceback" not in caplog.text
    assert ask(port, "GET", "/health")[0] == 200


@pytest.mark.fault("F25", "a client that does not read its answer is disconnected")
def test_server_drops_clients_that_do_not_read(port):
    body = json.dumps({"inputs": ["x" * 900_000]}).encode()
    request = head(f"Content-Length: {len(body)}") + body

    def send(client):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.settimeout(0.5)
        # The responses exceed the socket buffers, so the server has to wait.
        with contextlib.suppress(OSError):
            for _ in range(12):
                client.sendall(request)

    with contextlib.ExitStack() as stack:
        clients = [socket.socket() for _ in range(LIMITS.max_connections)]
        with futures.ThreadPoolExecutor(len(clients)) as pool:
            list(pool.map(send, map(stack.enter_context, clients)))
        # All connections are in use until the server closes them.
        started = time.monotonic()
        while True:
            try:
                assert ask(port, "GET", "/health", timeout=5)[0] == 200
                break
            except OSError:
                assert time.monotonic() - started < 30
                time.sleep(0.1)


def check(port):
    def check_texts(texts):
        unpaired = json.dumps({"inputs": texts})
        texts = list(map(encodable, texts))
        body = json.dumps({"inputs": texts})
        if unpaired != body:
            assert predict(port, unpaired)[0] == 400
        status, answer = predict(port, body)
        assert status == 200, answer
        found = answer["outputs"]["translations"]
        assert len(found) == len(texts) == len(answer["outputs"]["scores"])
        assert found == [" ".join(reversed(text.split())) for text in texts]
        return "answered"

    return check_texts


@pytest.mark.fault("F17", "the server returns one translation per text")
def test_server_translates_any_text(port):
    # The fake model treats an opening bracket and "secret" specially.
    texts = ANY_TEXT.filter(lambda text: text[:1] != "(" and "secret" not in text)
    assert fuzz(st.lists(texts, min_size=1, max_size=9), check(port), 100)
    check(port)([text for text in NASTY if text[:1] != "("])
    check(port)([""] * LIMITS.max_texts)
    check(port)(["ä x " * 200_000])
