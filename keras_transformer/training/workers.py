"""Processes that train one model together, as listed in `TF_CONFIG`.

Each process, called a worker, computes its rows of every global batch. Only the first
worker, the chief, writes files. Collective operations keep the workers in step, so all
of them must call `broadcast_from_chief`, `all_reduce_sum` and `fit` in the same order.
"""

import contextlib
import errno
import faulthandler
import itertools
import json
import logging
import os
import re
import signal
import socket
import time

import numpy as np
import tensorflow as tf

from keras_transformer.errors import WorkerLostError, WorkersError
from keras_transformer.signals import call_in_thread, handle_signals
from keras_transformer.training.replicas import default_strategy

logger = logging.getLogger(__name__)

START_SECONDS = 600
_JOBS = ("chief", "worker")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Seconds between two attempts to reach a worker, and seconds until one times out.
_PAUSE = 0.2
_ATTEMPT = 2.0


class Workers:
    """The processes that train together.

    Without `TF_CONFIG`, this process is the only worker. Create the object before any
    other use of TensorFlow, which configures devices only once. It makes `fit` of any
    Keras 3 model work, which fails with several workers otherwise (keras issue 20585):

        workers = Workers()
        with workers.strategy.scope():
            model = TrainingModel(Transformer.from_size("tiny", 8000))
            model.compile(FusedAdam(1e-3))
        model.fit(workers.distribute(dataset), steps_per_epoch=1000)

    Args:
        timeout_seconds: Seconds without a heartbeat after which a worker counts as
            lost.
        start_seconds: Seconds to wait for the other workers at the start.

    Attributes:
        index: Index of this worker, 0 for the chief.
        count: Number of workers.
        strategy: The `tf.distribute.Strategy` under which to build the model.

    Raises:
        WorkersError: If `TF_CONFIG` cannot be used.
        WorkerLostError: If the other workers did not start in time, or another process
            used this worker's port until the end of the wait.
    """

    def __init__(self, timeout_seconds=30.0, start_seconds=START_SECONDS):
        cluster, self.index = _cluster_and_index(os.environ.get("TF_CONFIG"))
        self._jobs = {job: len(addresses) for job, addresses in cluster.items()}
        self.count = max(1, sum(self._jobs.values()))
        if self.count == 1:
            self.strategy = default_strategy()
            return
        from keras_transformer.training import multi_worker

        logger.warning(
            f"worker {self.index} waits for all {self.count} workers, at most "
            f"{start_seconds} seconds"
        )
        addresses = [*itertools.chain(*cluster.values())]
        try:
            missing = wait_for_workers(addresses, self.index, start_seconds)
        except OSError as error:
            raise WorkerLostError(
                f"worker {self.index}: cannot listen on its address in `TF_CONFIG`, "
                f"{addresses[self.index]}: {error.strerror or error}. Stop the process "
                "that uses the port, or change the port in `TF_CONFIG` of all workers"
            ) from error
        if missing:
            raise WorkerLostError(
                f"worker {self.index}: {_worker_names(missing)} did not start within "
                f"{start_seconds} seconds. Start all workers with the same command, "
                "and check that their ports in `TF_CONFIG` can be reached"
            )
        multi_worker.patch_fit()
        multi_worker.watch_workers(self._jobs, timeout_seconds, start_seconds)
        # TensorFlow waits again, with the GIL held, so only faulthandler can end the
        # process. The chief's wait has no timeout.
        faulthandler.dump_traceback_later(start_seconds + 30, exit=True)
        try:
            # Ctrl-C and SIGTERM end the process at once, without Python's handlers.
            # TensorFlow installs a handler that ignores SIGTERM.
            with handle_signals(dict.fromkeys(_SIGNALS, signal.SIG_DFL)):
                self.strategy = tf.distribute.MultiWorkerMirroredStrategy()
        except tf.errors.OpError as error:
            raise WorkerLostError(
                f"worker {self.index}: the other workers did not start "
                f"within {start_seconds} "
                f"seconds: {str(error).partition(chr(10))[0]}"
            ) from error
        finally:
            faulthandler.cancel_dump_traceback_later()

    @property
    def num_replicas(self):
        """Number of replicas of all workers together."""
        return self.strategy.num_replicas_in_sync

    def scope(self):
        """Returns a context in which to build the model."""
        return self.strategy.scope()

    @property
    def is_chief(self):
        """True if this worker writes files."""
        return self.index == 0

    def broadcast_from_chief(self, function):
        """Calls `function` on the chief and returns its result on all workers.

        Args:
            function: Called without arguments. Must return a JSON value, for which the
                other workers wait.

        Raises:
            WorkersError: On the other workers, if `function` failed on the chief. The
                chief raises the original error.
        """
        if self.count == 1:
            return function()
        message, failure = json.dumps({"failed": True}), None
        if self.is_chief:
            try:
                message = json.dumps({"result": function()})
            except BaseException as error:
                failure = error
        received = json.loads(self._broadcast(message.encode()))
        if failure is not None:
            raise failure
        if "failed" in received:
            raise WorkersError(
                f"worker {self.index}: worker 0 failed. The log of worker 0 has the "
                "reason"
            )
        return received["result"]

    def all_reduce_sum(self, values):
        """Sums a list of integers elementwise over all workers.

        Returns:
            List of ints, the same on all workers.
        """
        if self.count == 1:
            return list(values)

        def reduce():
            # The reduction needs a tensor on a device of the strategy. `tf.constant`
            # could choose another one.
            array = tf.identity(np.asarray(values, "int32"))
            return self.strategy.reduce("SUM", array, axis=None).numpy().tolist()

        return call_in_thread(reduce)

    def distribute(self, dataset):
        """Returns the dataset to pass to `fit`, with this worker's rows of each batch.

        Args:
            dataset: Batches of this worker's rows, from `training_dataset(...,
                shard=(index, count))`. This worker's number of replicas must divide the
                number of rows.
        """
        if self.count == 1:
            return dataset
        replicas = self.strategy.num_replicas_in_sync // self.count

        def parts(*batch):
            # Splits [rows, length] into [rows / replicas, length] for each replica.
            return tf.data.Dataset.from_tensor_slices(
                tf.nest.map_structure(
                    lambda ids: tf.reshape(
                        ids, [replicas, tf.shape(ids)[0] // replicas, tf.shape(ids)[1]]
                    ),
                    batch,
                )
            )

        if replicas > 1:
            # `flat_map` loses the information that the dataset is endless.
            dataset = dataset.flat_map(parts).apply(
                tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
            )
        return self.strategy.distribute_datasets_from_function(lambda _: dataset)

    @contextlib.contextmanager
    def convert_worker_errors(self):
        """Converts TensorFlow's lost-worker errors to `WorkerLostError`."""
        try:
            yield
        except tf.errors.OpError as error:
            if self.count == 1 or not _is_lost_worker(error):
                raise
            named = re.findall(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)", str(error))
            others = {_worker_index(self._jobs, *task) for task in named} - {self.index}
            who = _worker_names(others)
            raise WorkerLostError(
                f"worker {self.index}: {who or 'another worker'} ended or cannot be "
                "reached, so training stopped. Start all workers again to resume "
                "from the last checkpoint"
            ) from error

    def _broadcast(self, message):
        """Returns the chief's bytes on all workers."""
        (length,) = self.all_reduce_sum([len(message) if self.is_chief else 0])
        values = np.zeros(length, "int32")
        if self.is_chief:
            values[:] = np.frombuffer(message, np.uint8)
        return bytes(self.all_reduce_sum(values))


def wait_for_workers(addresses, index, seconds):
    """Waits until a process answers at each address. Returns the indices of the others.

    While TensorFlow waits for workers, it holds the GIL, and the signal handler that it
    installs ignores SIGTERM. Workers therefore wait here first, where signals end the
    wait. This worker listens at its own address until all others have answered or the
    `seconds` are over. TensorFlow's server then uses the same address, so slower
    workers still get an answer.
    """
    missing = {*range(len(addresses))} - {index}
    deadline = time.monotonic() + seconds
    _, port = _host_and_port(addresses[index])
    with _listen(port, deadline):
        while True:
            missing = {each for each in missing if not _is_reachable(addresses[each])}
            if not missing or time.monotonic() > deadline:
                return sorted(missing)
            time.sleep(_PAUSE)


def _listen(port, deadline):
    """Returns a socket that listens on a port, over IPv4 and, if available, IPv6.

    The kernel completes connections, although no code accepts them. The process of an
    earlier run may still use the port, so the function retries until the deadline.
    """
    is_dual_stack = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_dual_stack else socket.AF_INET
    for attempt in itertools.count():
        try:
            return socket.create_server(
                ("", port), family=family, backlog=128, dualstack_ipv6=is_dual_stack
            )
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise
        if attempt == 0:
            logger.warning("port %s is in use; waiting for it", port)
        time.sleep(_PAUSE)


def _is_reachable(address):
    try:
        socket.create_connection(_host_and_port(address), _ATTEMPT).close()
    except OSError:
        return False
    return True


def _host_and_port(address):
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _is_lost_worker(error):
    classes = (
        tf.errors.AbortedError,
        tf.errors.CancelledError,
        tf.errors.DeadlineExceededError,
        tf.errors.UnavailableError,
    )
    return isinstance(error, classes) or "Collective ops is aborted" in str(error)


def _worker_index(jobs, job, task):
    """Returns the index of a task among the workers; the chief is first."""
    return int(task) + (jobs.get("chief", 0) if job == "worker" else 0)


def _worker_names(numbers):
    names = [f"worker {number}" for number in sorted(numbers)]
    names[-2:] = [" and ".join(names[-2:])]
    return ", ".join(names)


def _cluster_and_index(text):
    """Returns the addresses per job in `TF_CONFIG` and this process's index."""
    if not (text or "").strip():
        return {}, 0
    try:
        config = json.loads(text)
        cluster = config.get("cluster") or {}
        # Sorting puts `chief` before `worker`, as in `_worker_index`.
        addresses = {job: [*each] for job, each in sorted(cluster.items()) if each}
        if not addresses:
            return {}, 0
        for address in itertools.chain(*addresses.values()):
            host, _, port = address.rpartition(":")
            host.encode("idna")
            if not 0 < int(port) < 65_536:
                raise ValueError(f"no port in {address!r}")
        jobs = {job: len(each) for job, each in addresses.items()}
        job, task = config["task"]["type"], int(config["task"]["index"])
        unknown = sorted({job, *cluster} - set(_JOBS))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise WorkersError(
            'TF_CONFIG must be JSON such as {"cluster": {"worker": ["host:2222"]}, '
            f'"task": {{"type": "worker", "index": 0}}}}: {error!r}'
        ) from None
    if unknown:
        raise WorkersError(
            "TF_CONFIG: task types must be chief or worker. Received: "
            f"{', '.join(unknown)}"
        )
    if jobs.get("chief", 0) > 1:
        raise WorkersError(
            f"TF_CONFIG: the cluster must have at most one chief. Received: {jobs}"
        )
    if not 0 <= task < jobs.get(job, 0):
        raise WorkersError(
            "TF_CONFIG: the task index must be below the number of tasks of its type. "
            f"Received: {job} {task}, with the numbers of tasks {jobs}"
        )
    return addresses, _worker_index(jobs, job, task)
