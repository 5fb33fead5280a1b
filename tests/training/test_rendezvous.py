"""Workers wait for each other before TensorFlow starts."""

import contextlib
import json
import socket
import threading
import time

import pytest
import worker_processes
from waiting import wait_until

from keras_transformer.errors import WorkerLost
from keras_transformer.training.rendezvous import wait_for_workers
from keras_transformer.training.workers import Workers


def test_workers_meet_and_report_missing_ones():
    """A worker that has met all others starts a server on its port, as TensorFlow does.

    Slower workers then connect to this server and still meet all others.
    """
    addresses = worker_processes.cluster(3)
    missing = {}
    with contextlib.ExitStack() as servers:

        def meet(index):
            missing[index] = wait_for_workers(addresses, index, 30.0)
            port = int(addresses[index].rpartition(":")[2])
            servers.enter_context(socket.create_server(("127.0.0.1", port)))

        threads = [threading.Thread(target=meet, args=(index,)) for index in range(3)]
        for thread in threads:
            thread.start()
            time.sleep(0.1)
        for thread in threads:
            thread.join()
    assert missing == {0: [], 1: [], 2: []}
    # The servers are closed now, so worker 1 is alone.
    assert wait_for_workers(addresses, 1, 0.5) == [0, 2]


def test_workers_are_reached_over_ipv6():
    """Host names have only IPv6 addresses in some Kubernetes clusters."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("needs IPv6")
    here, there = worker_processes.cluster(2)
    port = int(here.rpartition(":")[2])
    # This worker's own address is a host name. The other one starts last.
    addresses = [f"localhost:{port}", there]
    waiting = threading.Thread(target=wait_for_workers, args=(addresses, 0, 60.0))
    waiting.start()

    def is_reachable():
        with contextlib.suppress(OSError):
            socket.create_connection(("::1", port)).close()
            return True

    wait_until(is_reachable, "the worker")
    with socket.create_server(("127.0.0.1", int(there.rpartition(":")[2]))):
        waiting.join()


@pytest.mark.parametrize("job", ["worker", "chief"])
def test_port_in_use_is_reported(monkeypatch, job):
    here, there = worker_processes.cluster(2)
    cluster = {"worker": [here, there]}
    if job == "chief":  # The chief is worker 0 in any order.
        cluster = {"worker": [there], "chief": [here]}
    task = {"type": job, "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    host, _, port = here.rpartition(":")
    with (
        socket.create_server((host, int(port))),
        pytest.raises(WorkerLost, match=rf"worker 0: cannot listen .*{port}: Address"),
    ):
        Workers(start_seconds=0.3)


def test_port_that_becomes_free_is_used():
    here, there = worker_processes.cluster(2)
    other = socket.create_server(("127.0.0.1", int(here.rpartition(":")[2])))
    threading.Timer(0.5, other.close).start()
    second = socket.create_server(("127.0.0.1", int(there.rpartition(":")[2])))
    with second:
        assert wait_for_workers([here, there], 0, 30.0) == []
    assert other.fileno() == -1
