"""The served version of a model, its page, and the server's metrics."""

import asyncio
import base64
import functools
import hashlib
import importlib.resources
import json
import logging
import math

import prometheus_client
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
)

from keras_transformer.untrusted import shorten

_LOG = logging.getLogger("keras_transformer.serving")
# Placeholders in page.html and page.js.
_STYLE, _SCRIPT, _SETTINGS = "/*STYLE*/", "/*SCRIPT*/", "/*SETTINGS*/null"
# Limits of the metrics' buckets.
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Versions:
    """The served version of a model, which follows the newest version of an export.

    A new version is served after its warm-up, or never if the warm-up fails. A queued
    request runs on the version that validated it. `page` is the page at `/`, as bytes,
    and `policy` its Content-Security-Policy. `is_warm` tells whether the first version
    has run its warm-up requests.
    """

    def __init__(self, model, limits):
        self._limits = limits
        self.is_warm = False
        self._serve(model)

    def _serve(self, model):
        self.page, self.policy = render_page(model, self._limits)
        self.model = model

    async def run(self, batcher):
        """Warms up, then follows the newest version until the batcher closes."""
        await self._warm_up(self.model, batcher)
        self.is_warm = batcher.is_open
        broken = None
        while self._limits.reload_interval is not None and batcher.is_open:
            await asyncio.sleep(self._limits.reload_interval)
            replacement = None
            try:
                replacement = await asyncio.to_thread(self.model.find_replacement)
                if replacement in (None, broken):
                    continue
                model = await asyncio.to_thread(self.model.reload)
                is_usable = await self._warm_up(model, batcher)
                if not batcher.is_open:
                    return
                if not is_usable:
                    broken, model = replacement, None  # frees the model's memory
                    continue
                self._serve(model)
                _LOG.info("%s: now serving version %s", model.name, model.version)
            except Exception as error:
                # `replacement` contains the size of the files, so a version that is
                # still being copied is tried again once its size has changed.
                broken = replacement
                _LOG.warning("the new version cannot be loaded: %s", shorten(error))

    async def _warm_up(self, model, batcher):
        """Runs the warm-up requests of a model. Returns whether all succeeded."""
        succeeded = True
        for signature, columns in model.warm_up_requests():
            try:
                # Clients may fill the queue, or it may be smaller than these requests.
                future = batcher.submit(
                    (model, signature), columns, math.inf, is_limited=False
                )
                await asyncio.wrap_future(future)
            except Exception as error:
                # A server that shuts down refuses the remaining requests.
                if not batcher.is_open:
                    return False
                _LOG.warning("warm-up of %s failed: %s", signature, shorten(error))
                succeeded = False
        return succeeded


def render_page(model, limits):
    """Returns the page as UTF-8 bytes, and a policy that allows only its own code."""
    settings = {
        "name": model.name,
        "version": model.version,
        "signatures": sorted(model.inputs),
        "maxLength": limits.max_text_length,
        "maxTexts": limits.max_texts,
        "timeout": limits.request_timeout,
    }
    # "</script>" in a name would end the script.
    text = json.dumps(settings, ensure_ascii=False).replace("<", "\\u003c")
    style, script = _read("page.css"), _read("page.js").replace(_SETTINGS, text)
    page = _read("page.html").replace(_STYLE, style).replace(_SCRIPT, script)
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return page.encode(), policy


def _read(name):
    files = importlib.resources.files("keras_transformer.serving")
    return files.joinpath(name).read_text(encoding="utf-8")


def _hash(code):
    """Returns the hash of a style or script in a Content-Security-Policy."""
    digest = hashlib.sha256(code.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


class Monitoring:
    """Metrics of one server for Prometheus, in a separate registry.

    Labels are fixed words, never text from a client. The function `queue_rows` returns
    the number of rows in the queue.
    """

    content_type = prometheus_client.CONTENT_TYPE_LATEST

    def __init__(self, queue_rows):
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        counter, histogram, gauge = (
            functools.partial(kind, namespace="keras_transformer", registry=registry)
            for kind in (Counter, Histogram, Gauge)
        )
        self._requests = counter(
            "requests", "Requests by kind and status", ["kind", "status"]
        )
        self.rejected = counter("rejected", "Rejected requests, by reason", ["reason"])
        self._rows = counter("rows", "Rows computed by the model", ["signature"])
        latency, duration = (
            "Request latency in seconds",
            "Seconds per batch in the model",
        )
        self._seconds = histogram(
            "request_seconds", latency, ["kind"], buckets=_SECONDS
        )
        self._batch_seconds = histogram("batch_seconds", duration, buckets=_SECONDS)
        self._batch_rows = histogram("batch_rows", "Rows per batch", buckets=_ROWS)
        gauge("queue_rows", "Rows in the queue").set_function(queue_rows)

    def count_response(self, kind, status, seconds):
        self._requests.labels(kind, str(status)).inc()
        self._seconds.labels(kind).observe(seconds)

    def count_batch(self, signature, rows, seconds):
        self._batch_rows.observe(rows)
        self._batch_seconds.observe(seconds)
        self._rows.labels(signature).inc(rows)

    def text(self):
        """Returns all metrics in Prometheus's format, as bytes."""
        return prometheus_client.generate_latest(self._registry)
