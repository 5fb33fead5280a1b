"""Figures for Prometheus."""

import prometheus_client
from prometheus_client import CollectorRegistry
from prometheus_client import Counter
from prometheus_client import Gauge
from prometheus_client import Histogram
from prometheus_client import ProcessCollector

_PREFIX = "keras_transformer"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Monitoring:
    """Counters of one server; a registry of its own, so that there can be several.

    Args:
        waiting: Function that gives the rows in the queue.
    """

    content_type = prometheus_client.CONTENT_TYPE_LATEST

    def __init__(self, waiting):
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = self._metric(
            Counter, "requests", "Requests by what was asked and status", "kind status"
        )
        self._rejected = self._metric(
            Counter, "rejected", "Requests that got an error, by reason", "reason"
        )
        self._seconds = self._metric(
            Histogram, "request_seconds", "From headers to answer", "kind", _SECONDS
        )
        self._batch_rows = self._metric(
            Histogram, "batch_rows", "Rows that the model got at once", "", _ROWS
        )
        self._batch_seconds = self._metric(
            Histogram, "batch_seconds", "Of the model for a batch", "", _SECONDS
        )
        self._rows = self._metric(
            Counter, "rows", "Rows that went through the model", "signature"
        )
        gauge = self._metric(Gauge, "queue_rows", "Rows that wait", "")
        gauge.set_function(waiting)

    def _metric(self, kind, name, text, labels, buckets=None):
        options = {"buckets": buckets} if buckets else {}
        return kind(
            f"{_PREFIX}_{name}",
            text,
            labels.split(),
            registry=self._registry,
            **options,
        )

    def answered(self, kind, status, seconds):
        """After each answer; `kind` is one of few words, not a client's text."""
        self._requests.labels(kind, str(status)).inc()
        self._seconds.labels(kind).observe(seconds)

    def rejected(self, reason):
        self._rejected.labels(reason).inc()

    def batch(self, signature, rows, seconds):
        """After each batch; what `Batcher` calls `observe`."""
        self._batch_rows.observe(rows)
        self._batch_seconds.observe(seconds)
        self._rows.labels(signature).inc(rows)

    def text(self):
        """All of it in Prometheus's format, bytes."""
        return prometheus_client.generate_latest(self._registry)
