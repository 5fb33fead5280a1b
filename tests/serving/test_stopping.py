"""A server that receives a signal answers its requests in progress, then stops."""

import http.client
import json
import os
import pathlib
import signal
import threading
import time
from concurrent import futures

import prepared
import pytest
from fake_model import PATH, FakeModel, ask, predict, queue_rows, served
from waiting import wait_until

from keras_transformer.serving import Limits, listen, serve
from keras_transformer.serving.server import build_server

CODE = """
import sys
sys.path[:0] = sys.argv[1:]
from fake_model import FakeModel
from keras_transformer.serving import serve
serve(FakeModel(seconds=1.5), port=0, started=lambda url: print(url, flush=True))
print("stopped", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_finish_requests_in_flight(number, tmp_path):
    here = pathlib.Path(__file__).parent
    errors = tmp_path / "errors"
    output, stdout = prepared.output_pipe()
    process = prepared.start(CODE, here, here.parent, stdout=stdout, stderr=errors)
    try:
        url = output.readline().strip()
        assert url.startswith("http://127.0.0.1:"), errors.read_text()
        port = int(url.rstrip("/").rpartition(":")[2])
        assert ask(port, "GET", "/health")[0] == 200
        with futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(predict, port, {"inputs": ["a b"]})
            time.sleep(0.7)
            os.kill(process.pid, number)
            assert asked.result(60)[1]["outputs"]["translations"] == ["b a"]
        process.join(60)
        assert process.exitcode == 0
        assert output.read() == "stopped\n"
        assert errors.read_text() == ""
    finally:
        process.kill()
        output.close()


def test_requests_unfinished_at_the_deadline_get_503():
    model, limits = FakeModel(seconds=8), Limits(shutdown_timeout=0.5, max_batch_size=1)
    with futures.ThreadPoolExecutor(2) as pool:
        with served(model, limits) as port:
            asked = [pool.submit(predict, port, {"inputs": ["a"]}) for _ in range(2)]
            wait_until(lambda: model.batches, "the start of the batch")
            wait_until(lambda: queue_rows(port) == 1, "the other request")
            started = time.monotonic()
        assert time.monotonic() - started < 6
        found = [each.result(20) for each in asked]
    assert found == [(503, {"error": "The server is shutting down"})] * 2


def test_each_request_under_load_gets_an_answer_until_the_exit():
    """A 503 asks for another try, and ends its connection before the server does."""

    def ask_again_and_again(port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        headers = {"Content-Type": "application/json"}
        status = 200
        while status == 200:
            body = json.dumps({"inputs": ["a b"]})
            connection.request("POST", f"{PATH}:predict", body, headers)
            answer = connection.getresponse()
            answer.read()
            status = answer.status
        return status, answer.headers["Retry-After"], answer.headers["Connection"]

    model = FakeModel(seconds=0.02)
    with futures.ThreadPoolExecutor(20) as pool:
        with served(model, Limits()) as port:
            asked = [pool.submit(ask_again_and_again, port) for _ in range(20)]
            wait_until(lambda: len(model.batches) > 5, "the load")
        assert [each.result(20) for each in asked] == [(503, "5", "close")] * 20


def test_draining_server_is_not_ready():
    model = FakeModel(seconds=2.0)
    listening = listen("127.0.0.1", 0)
    server = build_server(model, Limits())
    port = listening.getsockname()[1]
    with futures.ThreadPoolExecutor(2) as pool:
        running = pool.submit(server.run, [listening])
        wait_until(lambda: server.started, "the server", 60)
        asked = pool.submit(predict, port, {"inputs": ["a b"]})
        wait_until(lambda: model.batches, "the batch", 20)
        server.should_exit = True
        wait_until(lambda: ask(port, "GET", "/ready")[0] == 503, "draining", 20)
        assert ask(port, "GET", "/ready")[2] == {"status": "shutting down"}
        assert ask(port, "GET", "/health")[0] == 200
        found = ask(port, "POST", f"{PATH}:predict", {"inputs": ["c"]})
        assert (found[0], found[1]["Retry-After"]) == (503, "5")
        assert found[2] == {"error": "The server is shutting down"}
        assert asked.result(20)[0] == 200
        running.result(20)


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
