"""Micro-batching: concurrent requests share batches of the model.

This module is independent of HTTP and TensorFlow.
"""

import collections
import concurrent.futures
import contextlib
import math
import threading
import time

import numpy as np

from keras_transformer.serving.errors import (
    RequestError,
    deadline_exceeded,
    invalid,
    overloaded,
    shutting_down,
)


class _Job:
    """A request, whose rows may be computed in several batches."""

    def __init__(self, signature, columns, deadline, is_limited):
        self.signature = signature
        self.columns = columns
        self.num_rows = len(next(iter(columns.values())))
        self.deadline = deadline
        self.is_limited = is_limited
        self.future = concurrent.futures.Future()
        self.num_taken = 0  # rows that were put into a batch
        self.num_done = 0  # rows that were computed
        self.parts = []  # outputs, one dict per batch

    @property
    def num_waiting(self):
        """The number of rows that are in no batch yet."""
        return 0 if self.future.done() else self.num_rows - self.num_taken

    def fail(self, error):
        if not isinstance(error, Exception):
            error = RequestError(500, "Internal error", "internal")
        # A client that disconnects may cancel the future at any moment.
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.future.set_exception(error)

    def add(self, outputs, num_rows, max_values):
        """Adds the outputs of the next rows. The last rows complete the future."""
        self.parts.append(outputs)
        self.num_done += num_rows
        arrays = {name: [part[name] for part in self.parts] for name in outputs}
        # Padding to the longest part may add many values.
        if sum(math.prod(_joined_shape(each)) for each in arrays.values()) > max_values:
            self.parts.clear()
            self.fail(too_many_values(max_values))
        elif self.num_done == self.num_rows:
            all_outputs = {name: _concatenate(each) for name, each in arrays.items()}
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                self.future.set_result(all_outputs)


def too_many_values(max_values):
    return invalid(
        f"A response must contain at most {max_values:,} values. Send fewer or shorter "
        "rows."
    )


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

    A signature is any hashable key. Only requests with equal signatures share a batch.

    Args:
        run: Function `(signature, columns) -> outputs`. `columns` maps input names to
            lists with one value per row. `outputs` maps output names to arrays with the
            rows as leading axis.
        can_merge: Called with a signature. Returns whether its requests can share a
            batch.
        max_batch_size: Maximum number of rows per batch, or a function that is called
            with a signature and returns this number.
        max_wait: Seconds that the worker waits for a batch to fill up. It waits after
            every batch, because clients often send the next request right after a
            response.
        queue_size: Maximum number of waiting rows (see `is_limited` of `submit`).
        max_values: Maximum number of values (numbers and texts) in the outputs of a
            request.
        observe: Called after each batch with its signature, its number of rows and the
            seconds that it took.
    """

    def __init__(
        self,
        run,
        can_merge=lambda signature: True,
        max_batch_size=32,
        max_wait=0.005,
        queue_size=512,
        max_values=math.inf,
        observe=None,
    ):
        self._run = run
        self._can_merge = can_merge
        is_constant = isinstance(max_batch_size, int)
        self._max_batch_size = (
            (lambda signature: max_batch_size) if is_constant else max_batch_size
        )
        self._max_wait = max_wait
        self._queue_size = queue_size
        self._max_values = max_values
        self._observe = observe or (lambda *_: None)
        self._jobs = collections.deque()
        self._batch = []  # (job, rows) pairs of the running batch
        self._changed = threading.Condition()
        # Set by `drain`: time at which `close` gives up on unfinished requests.
        self._close_by = None
        self._worker = threading.Thread(target=self._work, name="model", daemon=True)
        self._worker.start()

    @property
    def is_open(self):
        """True while the queue accepts requests."""
        return self.is_working and self._close_by is None

    @property
    def is_working(self):
        """True while the worker runs. It ends once a closed queue is empty."""
        return self._worker.is_alive()

    @property
    def num_waiting(self):
        """The number of rows in the queue."""
        with self._changed:
            return sum(job.num_waiting for job in self._jobs)

    def submit(self, signature, columns, timeout, is_limited=True):
        """Queues a request.

        Args:
            signature: Hashable key, passed to `run`.
            columns: Dict of input names to lists of equal length, one value per row.
            timeout: Seconds after which rows that are still in the queue are dropped.
            is_limited: Whether `queue_size` applies. If not, the request is queued even
                if the queue is full, and its rows do not count.

        Returns:
            `concurrent.futures.Future` of the outputs. Canceling it drops the rows
            that are in no batch yet.

        Raises:
            RequestError: If the queue is full or closed.
        """
        job = _Job(signature, columns, time.monotonic() + timeout, is_limited)
        # An odd signature can raise errors. They must not end the worker.
        job.can_merge = self._can_merge(signature)
        job.max_batch_size = self._max_batch_size(signature)
        with self._changed:
            if not self.is_open:
                raise shutting_down()
            limited = [other for other in self._jobs if other.is_limited]
            num_waiting = sum(other.num_waiting for other in limited)
            if is_limited and num_waiting + job.num_rows > self._queue_size:
                raise overloaded()
            self._jobs.append(job)
            self._changed.notify_all()
        return job.future

    def drain(self, timeout=math.inf):
        """Refuses new requests. Queued requests still run.

        `close` stops waiting for unfinished requests `timeout` seconds after the first
        call of `drain`.
        """
        with self._changed:
            if self._close_by is None:
                self._close_by = time.monotonic() + timeout
            self._changed.notify_all()

    def close(self, timeout=math.inf):
        """Calls `drain`, waits for queued requests and fails the unfinished ones."""
        self.drain(timeout)
        remaining = self._close_by - time.monotonic()
        self._worker.join(None if remaining == math.inf else max(remaining, 0))
        self.abandon()

    def abandon(self):
        """Refuses new requests and fails all others, even in the running batch."""
        self.drain(0)
        with self._changed:
            for job in {*self._jobs, *(job for job, _ in self._batch)}:
                job.fail(shutting_down())
            self._jobs.clear()

    def _work(self):
        while self._wait_for_batch():
            if self._batch:
                self._run_batch(self._batch)
            self._batch = []  # its jobs keep a version of the model in memory

    def _wait_for_batch(self):
        """Waits for requests and moves the next batch to `self._batch`.

        The batch is empty if all requests were dropped.

        Returns:
            False once the queue is closed and empty.
        """
        with self._changed:
            while not self._jobs:
                if self._close_by is not None:
                    return False
                self._changed.wait()
            self._wait_for_more()
            self._drop_stale()
            self._batch = self._take()
            return True

    def _wait_for_more(self):
        """Waits up to `max_wait` seconds for the next batch to fill up."""
        until = time.monotonic() + self._max_wait
        first = self._jobs[0]
        while self._close_by is None and first.can_merge:
            num_rows = sum(
                job.num_waiting
                for job in self._jobs
                if job.signature == first.signature
            )
            remaining = until - time.monotonic()
            if num_rows >= first.max_batch_size or remaining <= 0:
                return
            self._changed.wait(remaining)

    def _drop_stale(self):
        now = time.monotonic()
        for job in [*self._jobs]:
            if job.deadline < now:
                job.fail(deadline_exceeded())
            if job.future.done():  # also if the client has disconnected
                self._jobs.remove(job)

    def _take(self):
        """Takes rows of the first request and of others that can share its batch.

        Returns:
            List of (job, rows) pairs.
        """
        if not self._jobs:
            return []
        first = self._jobs[0]
        jobs = [first]
        if first.can_merge:
            jobs = [job for job in self._jobs if job.signature == first.signature]
        batch, room = [], first.max_batch_size
        for job in jobs:
            count = min(room, job.num_waiting)
            batch.append((job, slice(job.num_taken, job.num_taken + count)))
            job.num_taken += count
            room -= count
            if job.num_taken == job.num_rows:
                self._jobs.remove(job)
            if not room:
                break
        return batch

    def _run_batch(self, batch):
        """Runs a batch. If it fails, runs each request separately."""
        try:
            parts = self._compute(batch)
        # Even a `SystemExit` must not end the worker.
        except BaseException as error:
            if len(batch) > 1:
                for one in batch:
                    self._run_batch([one])
            else:
                batch[0][0].fail(error)
            return
        for (job, rows), part in zip(batch, parts, strict=True):
            try:
                job.add(part, rows.stop - rows.start, self._max_values)
            # Memory may be exhausted, or the ranks of batches may differ.
            except BaseException as error:
                job.fail(error)

    def _compute(self, batch):
        """Runs a batch and returns a list with the outputs of each request."""
        signature = batch[0][0].signature
        columns = {
            name: [value for job, rows in batch for value in job.columns[name][rows]]
            for name in batch[0][0].columns
        }
        num_rows = sum(rows.stop - rows.start for _, rows in batch)
        started = time.monotonic()
        outputs = self._run(signature, columns)
        seconds = time.monotonic() - started
        for name, array in outputs.items():
            if np.shape(array)[:1] != (num_rows,):
                raise ValueError(
                    f"output {name} must have {num_rows} rows. Received: shape "
                    f"{np.shape(array)}"
                )
        self._observe(signature, num_rows, seconds)
        parts, start = [], 0
        for _, rows in batch:
            stop = start + rows.stop - rows.start
            parts.append({name: array[start:stop] for name, array in outputs.items()})
            start = stop
        return parts
