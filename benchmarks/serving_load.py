"""Measures the local server under usual load and under overload.

    pip install ".[serve,bench]"
    python benchmarks/serving_load.py saved_models/mine --text test.en

The script starts `keras-transformer serve` on loopback. `--clients` threads send
`--requests` requests with texts of random lengths. Then `--crowd` threads overload a
second server, which has a small queue, with a quarter as many requests. One more
request shows whether this server has recovered. The script writes
benchmarks/results/serving_load.json and .md.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import threading
import time

import machine
import psutil
import report

STARTED = r"^(\S+), version .* at http://127\.0\.0\.1:(\d+)/"
CODE = "from keras_transformer.cli import main; main()"


@contextlib.contextmanager
def server(folder, *options):
    """Starts the server; yields the request path, the port and the process."""
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, "serve", str(folder), "--port", "0", *options],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        found = None
        lines = []
        # TensorFlow logs its own lines first.
        for line in process.stderr:
            lines.append(line)
            if found := re.search(STARTED, line):
                break
        if found is None:
            raise SystemExit(f"the server did not start: {''.join(lines)}")
        # A full pipe would block the server.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield (
            f"/v1/models/{found[1]}:predict",
            int(found[2]),
            psutil.Process(process.pid),
        )
    finally:
        process.terminate()
        process.wait(60)


class Client:
    """A client with a persistent connection."""

    def __init__(self, path, port):
        self._path = path
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def request(self, texts):
        """Sends one request and returns its status and the seconds that it took.

        The status is HTTP's, the name of an exception, or "short" if translations are
        missing from the answer.
        """
        body = json.dumps({"inputs": texts})
        started = time.perf_counter()
        try:
            headers = {"Content-Type": "application/json"}
            self._connection.request("POST", self._path, body, headers)
            answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            return type(error).__name__, time.perf_counter() - started
        status = answer.status
        if status == 200 and len(json.loads(content)["outputs"]["scores"]) != len(
            texts
        ):
            status = "short"
        return status, time.perf_counter() - started


def random_requests(lines, seed):
    """Yields lists of texts of random lengths. Some texts are empty or unusual."""
    draw = random.Random(seed)
    words = " ".join(lines).split()
    while True:
        kind = draw.random()
        count = draw.choice((1, 1, 1, 2, 4, 8))
        if kind < 0.7:
            yield draw.choices(lines, k=count)
        elif kind < 0.97:
            start = draw.randrange(len(words))
            yield [" ".join(words[start : start + draw.randint(1, 60)])] * count
        else:
            yield [draw.choice(("", "  ", "\u202e \ufeff", "x" * 4000, "\0"))]


def send_load(path, port, lines, clients, requests):
    """Sends requests from several clients and summarizes the answers."""

    def run_client(number):
        client, texts = Client(path, port), random_requests(lines, number)
        share = requests // clients + (number < requests % clients)
        return [client.request(next(texts)) for _ in range(share)]

    started = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        found = [each for some in pool.map(run_client, range(clients)) for each in some]
    return summary(found, time.perf_counter() - started)


def summary(found, seconds):
    times = [1000 * taken for status, taken in found if status == 200]
    refused = [1000 * taken for status, taken in found if status == 503]
    return {
        "requests": len(found),
        "seconds": seconds,
        "statuses": collections.Counter(str(status) for status, _ in found),
        "answered_ms": percentiles(times),
        "refused_ms": percentiles(refused),
    }


def percentiles(values):
    if len(values) < 2:
        return None
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98], "max": max(values)}


def measure(arguments, lines):
    with server(arguments.folder) as (path, port, process):
        send_load(path, port, lines, arguments.clients, arguments.warm_up)
        before = process.memory_info().rss
        usual = send_load(path, port, lines, arguments.clients, arguments.requests)
        usual["rss_mib"] = [before / 2**20, process.memory_info().rss / 2**20]
    small = ("--queue-size", "16", "--max-texts", "16")
    with server(arguments.folder, *small) as (path, port, process):
        send_load(path, port, lines, 2, arguments.warm_up // 4)
        before = process.memory_info().rss
        overload = send_load(
            path, port, lines, arguments.crowd, arguments.requests // 4
        )
        overload["rss_mib"] = [before / 2**20, process.memory_info().rss / 2**20]
        status, seconds = Client(path, port).request(lines[:1])
        overload["after"] = {"status": status, "ms": 1000 * seconds}
    return {"usual load": usual, "overload": overload}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path, help="folder of an export")
    parser.add_argument(
        "--text", type=pathlib.Path, required=True, help="file with a sentence per line"
    )
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument(
        "--clients", type=int, default=8, help="clients under usual load"
    )
    parser.add_argument("--crowd", type=int, default=64, help="clients during overload")
    parser.add_argument(
        "--warm-up", type=int, default=400, help="requests before the measurement"
    )
    parser.add_argument("--output", default=str(report.RESULTS))
    arguments = parser.parse_args()
    from keras_transformer.pipelines.lines import read_lines

    lines = [line.strip() for line in read_lines(arguments.text) if line.strip()]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    found = measure(arguments, lines)
    described = {"machine": machine.description(), "versions": report.versions()}
    settings = {
        key: getattr(arguments, key)
        for key in ("requests", "clients", "crowd", "warm_up")
    }
    result = {**described, "settings": settings, "phases": found}
    report.write(arguments.output, "serving_load", result)


if __name__ == "__main__":
    main()
