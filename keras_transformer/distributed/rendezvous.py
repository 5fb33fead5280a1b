"""Rendezvous of the workers at startup.

While TensorFlow waits for workers, it holds the GIL, and the signal handler that it
installs ignores SIGTERM. Workers therefore wait here first, where signals end the wait.
"""

import socket
import time

# Seconds between two attempts to reach a worker, and seconds until one times out.
_PAUSE = 0.2
_ATTEMPT = 2.0


def wait_for_workers(addresses, index, seconds):
    """Waits until a process answers at the address of each worker.

    This worker listens at its own address until all others have answered or the time is
    up. TensorFlow's server then uses the same address, so slower workers still get an
    answer.

    Args:
        addresses: List of `"host:port"`, one per worker.
        index: Index of this worker.
        seconds: Seconds to wait.

    Returns:
        Indices of the workers that did not answer in time.

    Raises:
        OSError: If this worker could not listen at its port in time, for example
            because another process does.
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
    """Returns a server at a port, for IPv6 too where available.

    The kernel completes connections, although no code accepts them. The process of an
    earlier run may still use the port, so this tries again until the deadline.
    """
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    while True:
        try:
            return socket.create_server(
                ("", port), family=family, backlog=128, dualstack_ipv6=both
            )
        except OSError:
            if time.monotonic() > deadline:
                raise
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
