"""Micro-batching: concurrent requests share batches of the model.

This module is independent of HTTP and TensorFlow.
"""

import concurrent.futures
import contextlib
import math
import threading
import time

import numpy as np

from keras_transformer.serving.limits import (
    deadline_exceeded,
    overloaded,
    shutting_down,
    too_many_values,
)


class _Job:
    """A request, whose rows may be computed in several batches."""

    def __init__(self, key, columns, timeout, is_limited):
        self.key = key
        self.columns = columns
        self.num_rows = len(next(iter(columns.values())))
        self.deadline = time.monotonic() + timeout
        self.is_limited = is_limited
        self.future = concurrent.futures.Future()
        self.num_taken = 0  # rows that were put into a batch
        self.parts = []  # outputs of the computed rows, one dict per batch

    @property
    def num_waiting(self):
        """The number of rows that are in no batch yet."""
        return 0 if self.future.done() else self.num_rows - self.num_taken

    def fail(self, error):
        # A client that disconnects may cancel the future at any moment.
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.future.set_exception(error)

    def add(self, outputs, is_last, max_values):
        """Adds the outputs of the next rows. The last rows complete the future."""
        self.parts.append(outputs)
        arrays = {name: [part[name] for part in self.parts] for name in outputs}
        # Padding to the longest part may add many values.
        if sum(math.prod(_joined_shape(each)) for each in arrays.values()) > max_values:
            raise too_many_values(max_values)
        if is_last:
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                self.future.set_result({k: _concatenate(v) for k, v in arrays.items()})


def _joined_shape(arrays):
    """Returns the shape of the result of `_concatenate`."""
    _, *axes = zip(*(array.shape for array in arrays), strict=True)
    return sum(map(len, arrays)), *map(max, axes)


def _concatenate(arrays):
    """Joins arrays along the rows and pads their other axes to the longest."""
    if len(arrays) == 1:
        return arrays[0]
    empty = b"" if arrays[0].dtype == object else 0
    joined = np.full(_joined_shape(arrays), empty, arrays[0].dtype)
    start = 0
    for array in arrays:
        part = joined[start : start + len(array)]
        part[tuple(map(slice, array.shape))] = array
        start += len(array)
    return joined


class Batcher:
    """A bounded queue and one worker thread that runs the model.

    Args:
        run: Function of a key and a dict of columns that returns a dict of arrays with
            the rows as leading axis.
        can_merge: Function of a key that returns whether requests with this key share
            a batch.
        max_batch_size: Function of a key that returns the maximum number of rows of a
            batch.
        limits: Has `queue_size`, `max_wait` and `max_values`.
        observe: Called with key, number of rows and seconds after each batch.
    """

    def __init__(self, run, can_merge, max_batch_size, limits, observe):
        self._run = run
        self._can_merge = can_merge
        self._max_batch_size = max_batch_size
        self._limits = limits
        self._observe = observe
        self._jobs = []
        self._batch = []  # (job, rows) pairs of the running batch
        self._changed = threading.Condition()
        self.is_open = True  # whether the queue accepts requests
        self._worker = threading.Thread(target=self._work, name="model", daemon=True)
        self._worker.start()

    @property
    def is_working(self):
        """True while the worker runs. It ends once a closed queue is empty."""
        return self._worker.is_alive()

    @property
    def num_waiting(self):
        """The number of rows in the queue."""
        with self._changed:
            return sum(job.num_waiting for job in self._jobs)

    def submit(self, key, columns, timeout, is_limited=True):
        """Queues a request, unless the queue is full or closed.

        `columns` maps input names to lists with one value per row. Rows that are in no
        batch after `timeout` seconds are dropped. `queue_size` applies unless
        `is_limited` is false. The result is a `concurrent.futures.Future` of the
        outputs; if it is canceled, the rows that are in no batch yet are dropped.
        """
        job = _Job(key, columns, timeout, is_limited)
        with self._changed:
            if not self.is_open:
                raise shutting_down()
            waiting = sum(each.num_waiting for each in self._jobs if each.is_limited)
            if is_limited and waiting + job.num_rows > self._limits.queue_size:
                raise overloaded()
            self._jobs.append(job)
            self._changed.notify_all()
        return job.future

    def drain(self):
        """Refuses new requests. Queued requests still run."""
        with self._changed:
            self.is_open = False
            self._changed.notify_all()

    def abandon(self):
        """Refuses new requests and fails all others, even in the running batch."""
        self.drain()
        with self._changed:
            for job in [*self._jobs, *(job for job, _ in self._batch)]:
                job.fail(shutting_down())
            self._jobs.clear()

    def close(self, timeout):
        """Calls `drain`, and `abandon` if the worker has not ended after `timeout`."""
        self.drain()
        self._worker.join(timeout)
        self.abandon()

    def _work(self):
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or not self.is_open)
                if not self._jobs:
                    return
                if self._can_merge(self._jobs[0].key):
                    # Clients often send the next request right after a response.
                    self._changed.wait_for(self._is_full, self._limits.max_wait)
                self._batch = self._take()
            if self._batch:
                self._run_batch(self._batch)
            self._batch = []  # its jobs keep a version of the model in memory

    def _is_full(self):
        """Returns whether more requests would not change the next batch."""
        if not self.is_open:
            return True
        num_rows = sum(job.num_waiting for job in self._mergeable())
        return num_rows >= self._max_batch_size(self._jobs[0].key)

    def _mergeable(self):
        """Returns the first request and those that can share its batch."""
        key = self._jobs[0].key
        count = None if self._can_merge(key) else 1
        return [job for job in self._jobs if job.key == key][:count]

    def _take(self):
        """Returns the next batch, (job, rows) pairs. Stale requests are dropped."""
        for job in self._jobs:
            if job.deadline < time.monotonic():
                job.fail(deadline_exceeded())
        # The futures of clients that have disconnected are canceled.
        self._jobs = [job for job in self._jobs if not job.future.done()]
        if not self._jobs:
            return []
        batch, room = [], self._max_batch_size(self._jobs[0].key)
        for job in self._mergeable():
            if count := min(room, job.num_waiting):
                batch.append((job, slice(job.num_taken, job.num_taken + count)))
                job.num_taken += count
                room -= count
        self._jobs = [job for job in self._jobs if job.num_taken < job.num_rows]
        return batch

    def _run_batch(self, batch):
        """Runs a batch. If it fails, runs each request separately."""
        try:
            parts = self._compute(batch)
        except Exception as error:
            if len(batch) == 1:
                batch[0][0].fail(error)
            else:
                for one in batch:
                    self._run_batch([one])
            return
        for (job, rows), part in zip(batch, parts, strict=True):
            try:
                is_last = rows.stop == job.num_rows
                job.add(part, is_last, self._limits.max_values)
            # Memory may be exhausted, or the ranks of batches may differ.
            except Exception as error:
                job.fail(error)

    def _compute(self, batch):
        """Runs a batch and returns a list with the outputs of each request."""
        key = batch[0][0].key
        columns = {
            name: [value for job, rows in batch for value in job.columns[name][rows]]
            for name in batch[0][0].columns
        }
        ends = np.cumsum([rows.stop - rows.start for _, rows in batch])
        started = time.monotonic()
        outputs = self._run(key, columns)
        self._observe(key, int(ends[-1]), time.monotonic() - started)
        for name, array in outputs.items():
            if np.shape(array)[:1] != (ends[-1],):
                raise ValueError(
                    f"output {name} must have {ends[-1]} rows. Received: shape "
                    f"{np.shape(array)}"
                )
        return [
            {name: array[start:end] for name, array in outputs.items()}
            for start, end in zip([0, *ends[:-1]], ends, strict=True)
        ]
