"""Signals to a server in another process."""

import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest
from fake_model import ask
from fake_model import predict

CODE = """
import sys
sys.path[:0] = sys.argv[1:]
from fake_model import FakeModel
from keras_transformer.serving import serve
serve(FakeModel(seconds=1.5), port=0, started=lambda url: print(url, flush=True))
print("stopped", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_finish_requests_in_flight(number):
    here = pathlib.Path(__file__).parent
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, str(here), str(here.parent)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), process.stderr.read()
        port = int(url.rstrip("/").rpartition(":")[2])
        assert ask(port, "GET", "/health")[0] == 200
        answers = []
        asking = threading.Thread(
            target=lambda: answers.append(predict(port, {"inputs": ["a b"]}))
        )
        asking.start()
        time.sleep(0.7)
        process.send_signal(number)
        asking.join(60)
        assert answers[0][1]["outputs"]["translations"] == ["b a"]
        assert process.wait(60) == 0
        assert process.stdout.read() == "stopped\n"
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()
