"""Requests of random lengths from several clients, then more than the server can take.

    pip install ".[serve,bench]"
    python benchmarks/serving_load.py saved_models/mine --text test.en

Starts `keras-transformer serve` on loopback, warms it up, sends `--requests` requests
from `--clients` threads, has `--crowd` threads overload a small queue, and asks once
more. Writes benchmarks/results/serving_load.json and .md.
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
    """The command in a process of its own: the path, the port and the process."""
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, "serve", str(folder), "--port", "0", *options],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        found = None
        told = []
        # TensorFlow's own lines come first.
        for line in process.stderr:
            told.append(line)
            if found := re.search(STARTED, line):
                break
        if found is None:
            raise SystemExit(f"the server did not start: {''.join(told)}")
        # A full pipe would stop the server.
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
    """One connection that is kept."""

    def __init__(self, path, port):
        self._path = path
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def ask(self, texts):
        """Status and seconds of one request."""
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


def drawn(lines, seed):
    """Endless texts of random lengths, one to several at once, some of them odd."""
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


def phase(path, port, lines, clients, requests):
    """Statuses and seconds of so many requests from so many clients."""

    def one(number):
        client, texts = Client(path, port), drawn(lines, number)
        share = requests // clients + (number < requests % clients)
        return [client.ask(next(texts)) for _ in range(share)]

    started = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        found = [each for some in pool.map(one, range(clients)) for each in some]
    return summary(found, time.perf_counter() - started)


def summary(found, seconds):
    times = [1000 * taken for status, taken in found if status == 200]
    refused = [1000 * taken for status, taken in found if status in (429, 503)]
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
        phase(path, port, lines, arguments.clients, arguments.warm_up)
        before = process.memory_info().rss
        usual = phase(path, port, lines, arguments.clients, arguments.requests)
        usual["rss_mib"] = [before / 2**20, process.memory_info().rss / 2**20]
    small = ("--queue-size", "16", "--max-texts", "16")
    with server(arguments.folder, *small) as (path, port, process):
        phase(path, port, lines, 2, arguments.warm_up // 4)
        before = process.memory_info().rss
        overload = phase(path, port, lines, arguments.crowd, arguments.requests // 4)
        overload["rss_mib"] = [before / 2**20, process.memory_info().rss / 2**20]
        status, seconds = Client(path, port).ask(lines[:1])
        overload["after"] = {"status": status, "ms": 1000 * seconds}
    return {"usual load": usual, "overload": overload}


def row(name, found):
    answered, refused = found["answered_ms"], found["refused_ms"]
    statuses = ", ".join(f"{k}: {n:,}" for k, n in sorted(found["statuses"].items()))
    return [
        name,
        f"{found['requests']:,} in {found['seconds']:.0f} s",
        statuses,
        *(
            f"{answered[each]:.0f}" if answered else ""
            for each in ("p50", "p95", "p99")
        ),
        f"{refused['p99']:.0f}" if refused else "",
        " to ".join(f"{each:,.0f}" for each in found["rss_mib"]),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path, help="an export")
    parser.add_argument("--text", type=pathlib.Path, required=True)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--crowd", type=int, default=64)
    parser.add_argument("--warm-up", type=int, default=400)
    parser.add_argument("--output", default=str(report.RESULTS))
    arguments = parser.parse_args()
    from keras_transformer.pipelines.lines import read_lines

    lines = [line.strip() for line in read_lines(arguments.text) if line.strip()]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    found = measure(arguments, lines)
    head = ["what", "requests", "statuses", "p50 ms", "p95", "p99"]
    head += ["p99 of refusals ms", "RSS MiB, before to after"]
    text = report.table(head, [row(name, each) for name, each in found.items()])
    text += f"\nOne request after the overload: {found['overload']['after']}\n"
    described = {"machine": machine.description(), "versions": report.versions()}
    settings = {
        key: getattr(arguments, key)
        for key in ("requests", "clients", "crowd", "warm_up")
    }
    result = {**described, "settings": settings, "phases": found}
    report.write(arguments.output, "serving_load", result, text)


if __name__ == "__main__":
    main()
