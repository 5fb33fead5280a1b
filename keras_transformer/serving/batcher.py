"""Micro-batching: requests that come at the same time go through the model together.

Nothing in here knows of HTTP or TensorFlow.
"""

import collections
import concurrent.futures
import contextlib
import threading
import time

import numpy as np

from keras_transformer.serving.errors import RequestError
from keras_transformer.serving.errors import overloaded
from keras_transformer.serving.errors import too_late


class _Job:
    """A request's rows; a worker may take them in parts."""

    def __init__(self, signature, columns, num_rows, deadline):
        self.signature = signature
        self.columns = columns
        self.num_rows = num_rows
        self.deadline = deadline
        self.future = concurrent.futures.Future()
        self.taken = 0
        self.parts = []

    @property
    def waiting(self):
        """Rows that no worker has taken yet."""
        return 0 if self.future.done() else self.num_rows - self.taken

    def fail(self, error):
        # The client may have gone, which cancels the future at any moment.
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.future.set_exception(error)

    def add(self, outputs):
        self.parts.append(outputs)
        if sum(count for count, _ in self.parts) < self.num_rows:
            return
        parts = [outputs for _, outputs in self.parts]
        whole = parts[0]
        if len(parts) > 1:
            whole = {
                name: np.concatenate([part[name] for part in parts]) for name in whole
            }
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.future.set_result(whole)


class Batcher:
    """A bounded queue in front of one worker thread that runs the model.

    Args:
        run: Function `(signature, columns) -> outputs`: `columns` are lists, one value
            for each row, by input; `outputs` arrays with the rows as leading axis.
        merges: Function of a signature: whether rows of several requests may go
            together. A request that may not goes through whole.
        max_batch_size: Rows that the model gets at once.
        max_wait: Seconds that an idle worker waits for a batch to fill up.
        queue_size: Rows that wait at most.
        observe: Called with the signature, rows and seconds of each batch.
    """

    def __init__(
        self,
        run,
        merges=lambda signature: True,
        max_batch_size=32,
        max_wait=0.005,
        queue_size=512,
        observe=None,
    ):
        self._run = run
        self._merges = merges
        self._max_batch_size = max_batch_size
        self._max_wait = max_wait
        self._queue_size = queue_size
        self._observe = observe or (lambda *_: None)
        self._jobs = collections.deque()
        self._changed = threading.Condition()
        self._closed = False
        self._worker = threading.Thread(target=self._work, name="model", daemon=True)
        self._worker.start()

    @property
    def alive(self):
        """Whether requests are taken."""
        return self._worker.is_alive() and not self._closed

    @property
    def waiting(self):
        """Rows in the queue."""
        with self._changed:
            return sum(job.waiting for job in self._jobs)

    def submit(self, signature, columns, timeout):
        """Queues a request.

        Args:
            signature: Its name.
            columns: Lists of the same length, one value for each row, by input.
            timeout: Seconds after which nobody waits for the answer.

        Returns:
            `concurrent.futures.Future` of the outputs.

        Raises:
            RequestError: the queue is full or closed.
        """
        num_rows = len(next(iter(columns.values())))
        job = _Job(signature, columns, num_rows, time.monotonic() + timeout)
        with self._changed:
            if self._closed:
                raise overloaded("The server is shutting down", retry_after=5)
            waiting = sum(other.waiting for other in self._jobs)
            if waiting + num_rows > self._queue_size:
                raise overloaded()
            self._jobs.append(job)
            self._changed.notify_all()
        return job.future

    def close(self, timeout=None):
        """Takes no more requests, and finishes those that it has.

        Args:
            timeout: Seconds; requests that are not done by then fail.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._worker.join(timeout)
        with self._changed:
            for job in self._jobs:
                job.fail(overloaded("The server is shutting down", retry_after=5))
            self._jobs.clear()

    def _work(self):
        while (batch := self._next_batch()) is not None:
            if batch:
                self._finish(batch)

    def _next_batch(self):
        """Jobs with the rows to take of each, [] to ask again, None at the end."""
        with self._changed:
            while not self._jobs:
                if self._closed:
                    return None
                self._changed.wait()
            self._wait_for_more()
            self._drop_stale()
            return self._take()

    def _wait_for_more(self):
        """Gives a batch that is not full the time to become so."""
        until = time.monotonic() + self._max_wait
        first = self._jobs[0]
        while not self._closed and self._merges(first.signature):
            rows = sum(
                job.waiting for job in self._jobs if job.signature == first.signature
            )
            left = until - time.monotonic()
            if rows >= self._max_batch_size or left <= 0:
                return
            self._changed.wait(left)

    def _drop_stale(self):
        now = time.monotonic()
        for job in [*self._jobs]:
            if job.deadline < now:
                job.fail(too_late())
            if job.future.done():  # or the client has gone
                self._jobs.remove(job)

    def _take(self):
        if not self._jobs:
            return []
        first = self._jobs[0]
        if not self._merges(first.signature):
            self._jobs.popleft()
            first.taken = first.num_rows
            return [(first, slice(0, first.num_rows))]
        batch, room = [], self._max_batch_size
        for job in [*self._jobs]:
            if job.signature != first.signature:
                continue
            count = min(room, job.waiting)
            batch.append((job, slice(job.taken, job.taken + count)))
            job.taken += count
            room -= count
            if job.taken == job.num_rows:
                self._jobs.remove(job)
            if not room:
                break
        return batch

    def _finish(self, batch):
        """Runs a batch; if it fails, each request alone, so that one fails at most."""
        signature = batch[0][0].signature
        columns = {
            name: [value for job, rows in batch for value in job.columns[name][rows]]
            for name in batch[0][0].columns
        }
        count = sum(rows.stop - rows.start for _, rows in batch)
        started = time.monotonic()
        try:
            outputs = self._run(signature, columns)
        # Whatever it is, the worker has to live on.
        except BaseException as error:
            if len(batch) > 1:
                for one in batch:
                    self._finish([one])
            else:
                batch[0][0].fail(_told(error))
            return
        self._observe(signature, count, time.monotonic() - started)
        start = 0
        for job, rows in batch:
            stop = start + rows.stop - rows.start
            part = {name: array[start:stop] for name, array in outputs.items()}
            job.add((stop - start, part))
            start = stop


def _told(error):
    """The error for a future, which must not be one that ends a thread or process."""
    if isinstance(error, Exception):
        return error
    return RequestError(500, "Internal error", "internal")
