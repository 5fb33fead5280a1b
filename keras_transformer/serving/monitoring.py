"""Metrics for Prometheus."""

import prometheus_client
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
)

_PREFIX = "keras_transformer"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Monitoring:
    """Metrics of one server, in a separate registry.

    Args:
        queue_rows: Function that returns the number of rows in the queue.
    """

    content_type = prometheus_client.CONTENT_TYPE_LATEST

    def __init__(self, queue_rows):
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = self._metric(
            Counter, "requests", "Requests by kind and status", "kind status"
        )
        self._rejected = self._metric(
            Counter, "rejected", "Rejected requests, by reason", "reason"
        )
        self._seconds = self._metric(
            Histogram, "request_seconds", "Request latency in seconds", "kind", _SECONDS
        )
        self._batch_rows = self._metric(
            Histogram, "batch_rows", "Rows per batch", "", _ROWS
        )
        self._batch_seconds = self._metric(
            Histogram, "batch_seconds", "Seconds per batch in the model", "", _SECONDS
        )
        self._rows = self._metric(
            Counter, "rows", "Rows computed by the model", "signature"
        )
        gauge = self._metric(Gauge, "queue_rows", "Rows in the queue", "")
        gauge.set_function(queue_rows)

    def _metric(self, kind, name, text, labels, buckets=None):
        options = {"buckets": buckets} if buckets else {}
        return kind(
            f"{_PREFIX}_{name}",
            text,
            labels.split(),
            registry=self._registry,
            **options,
        )

    def count_response(self, kind, status, seconds):
        """Counts a response; `kind` is a fixed label, never text from a client."""
        self._requests.labels(kind, str(status)).inc()
        self._seconds.labels(kind).observe(seconds)

    def count_rejection(self, reason):
        """Counts a rejected request; `reason` is a fixed label."""
        self._rejected.labels(reason).inc()

    def count_batch(self, signature, rows, seconds):
        """Counts a batch. Passed to `Batcher` as `observe`."""
        self._batch_rows.observe(rows)
        self._batch_seconds.observe(seconds)
        self._rows.labels(signature).inc(rows)

    def text(self):
        """Returns all metrics in Prometheus's format, as bytes."""
        return prometheus_client.generate_latest(self._registry)
