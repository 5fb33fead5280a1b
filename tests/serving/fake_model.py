"""A model without TensorFlow that reverses words, and helpers to serve and query it."""

import contextlib
import http.client
import json
import re
import threading
import time

import numpy as np
from waiting import wait_until

from keras_transformer.export.load import ExportLimits
from keras_transformer.serving.limits import Limits
from keras_transformer.serving.server import build_server, listen

# Limits of the server that most tests share.
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
TEXTS = {"inputs": "string"}
PAIRS = {"inputs": "string", "targets": "string"}


class FakeModel:
    """A model with the interface of `ServedModel`.

    The translation of a text is its words in reverse, with a score of minus a tenth of
    its length. The text "secret" raises an error.

    Args:
        seconds: Duration of each batch.
        attend: Whether the signature `attend`, which returns attention, exists.
        warm_up: List of warm-up requests, pairs of a signature and its columns.
    """

    name = "fake"
    version = 7
    metadata: dict = {"signature_def": {"signature_def": {}}}  # noqa: RUF012

    limits = ExportLimits(max_batch_size=1000, max_source_length=256, end_id=3)
    newer = None

    def __init__(self, seconds=0.0, attend=True, warm_up=()):
        self.inputs = {
            "serving_default": TEXTS,
            "translate_n_best": TEXTS,
            "translate_ids": {"source_ids": "int32"},
        }
        if attend:
            self.inputs["attend"] = PAIRS
        self.seconds = seconds
        self.warm_up = warm_up
        self.batches = []

    def can_merge(self, signature):
        return signature in ("serving_default", "translate_n_best")

    def find_replacement(self):
        return self.newer and self.newer.version

    def reload(self):
        return self.newer

    def warm_up_requests(self):
        return self.warm_up

    def estimate_values(self, signature, columns):
        column = next(iter(columns.values()))
        return len(column) * (
            len(column[0]) if signature == "translate_ids" else len(column)
        )

    def run(self, signature, columns):
        self.batches.append(len(next(iter(columns.values()))))
        time.sleep(self.seconds)
        if signature == "translate_ids":
            return {"target_ids": np.array(columns["source_ids"])[:, ::-1]}
        if b"secret" in columns["inputs"]:
            raise RuntimeError("Traceback in /home/somebody/secret.py")
        if signature == "attend":
            return self.attend(columns)
        texts = [translated(text) for text in columns["inputs"]]
        if signature == "serving_default":
            return {"scores": scores(texts), "translations": objects(texts)}
        ranked = [[text, text + "!", ""] for text in texts]
        return {
            "counts": np.array([2] * len(texts)),
            "scores": np.stack([scores(texts) + shift for shift in (0, -1, -9)], 1),
            "translations": np.stack([objects(row) for row in ranked]),
            "truncated": np.array([len(text) > 100 for text in texts]),
        }

    def attend(self, columns):
        source, target = (
            [(" " * (n > 0) + word) for n, word in enumerate(text.decode().split())]
            for text in (columns["inputs"][0], columns["targets"][0])
        )
        # Target words attend to the source in reverse.
        weights = np.full((1, len(target), len(source)), 0.02)
        for i in range(len(target)):
            weights[0, i, max(len(source) - 1 - i, 0)] = 0.8
        return {
            "attention": weights,
            "source_pieces": objects([[each.encode() for each in source]]),
            "target_pieces": objects([[each.encode() for each in target]]),
        }


def translated(text):
    if isinstance(text, bytes):
        text = text.decode()
    return " ".join(reversed(text.split()))


def objects(values):
    def encoded(value):
        if isinstance(value, list):
            return [encoded(each) for each in value]
        return value.encode() if isinstance(value, str) else value

    return np.array(encoded(values), object)


def scores(texts):
    return np.array([-len(text) / 10 for text in texts], "float32")


@contextlib.contextmanager
def served(model, limits, hosts=(), languages=None):
    """Runs a server in a thread and yields its port."""
    listening = listen("127.0.0.1", 0)
    server = build_server(model, limits, hosts, languages)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        wait_until(lambda: server.started, "the server", 60)
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(60)
        listening.close()
        assert not thread.is_alive()


def ask(port, method, path, body=None, headers=(), timeout=60):
    """Sends a request and returns the response's status, headers and parsed body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        headers = {"Content-Type": "application/json", **dict(headers)}
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        kind = answer.headers.get_content_type()
        if content and kind == "application/json":
            content = json.loads(content)
        return answer.status, answer.headers, content
    finally:
        connection.close()


def queue_rows(port):
    """Returns the number of rows that wait in the server's queue."""
    return metric(port, "queue_rows")


def predict(port, body, name="fake"):
    status, _, answer = ask(port, "POST", f"/v1/models/{name}:predict", body)
    return status, answer


def metric(port, name):
    """Returns the value of one of the server's metrics, or 0 if it has none."""
    text = ask(port, "GET", "/metrics")[2].decode()
    found = re.search(rf"^keras_transformer_{re.escape(name)} (.*)$", text, re.M)
    return float(found[1]) if found else 0.0
