"""Runs `keras-transformer train` as several workers on the loopback interface."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import time

from waiting import newest_step, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[1]
COMMAND = "from keras_transformer.cli import main; import sys; sys.exit(main())"
# Timeout in seconds. It is generous, because it only has to end hangs.
LIMIT = 300


def cluster(count):
    """Returns `count` local addresses with free ports."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses


class Workers:
    """Workers that train together. Leaving the context ends the remaining ones.

    Args:
        arguments: Arguments of `keras-transformer`.
        logs: Folder for the output of each worker, `worker-<number>.log`.
        count: Number of workers in the cluster.
        environment: Environment variables to add.
        only: Index of the only worker to start. If `None`, all are started.
    """

    def __init__(self, arguments, logs, count=2, environment=(), only=None):
        indices = range(count) if only is None else [only]
        self.logs = [logs / f"worker-{index}.log" for index in indices]
        addresses = cluster(count)
        self.processes = []
        for index, log in zip(indices, self.logs, strict=True):
            config = {
                "cluster": {"worker": addresses},
                "task": {"type": "worker", "index": index},
            }
            with open(log, "wb") as file:
                self.processes.append(
                    subprocess.Popen(
                        # The low priority lets the waiting test see a checkpoint
                        # before the workers have trained far past it.
                        ["nice", sys.executable, "-c", COMMAND, *map(str, arguments)],
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        env={
                            **os.environ,
                            "PYTHONPATH": str(ROOT),
                            "TF_CONFIG": json.dumps(config),
                            **dict(environment),
                        },
                    )
                )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()

    def codes(self, seconds=LIMIT):
        """Waits until all processes have ended and returns their exit codes."""
        end = time.monotonic() + seconds
        return [
            process.wait(max(0.1, end - time.monotonic())) for process in self.processes
        ]

    def text(self, index):
        return self.logs[index].read_text(errors="replace")

    def wait_for_step(self, folder, step):
        """Waits for a checkpoint of `step` or later; fails if a worker ends first."""

        def is_reached():
            for index, process in enumerate(self.processes):
                assert process.poll() is None, self.text(index)[-4000:]
            return newest_step(folder / "checkpoints") >= step

        wait_until(is_reached, lambda: self.text(0)[-4000:], LIMIT)
