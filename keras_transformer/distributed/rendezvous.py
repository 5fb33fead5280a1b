"""Rendezvous of the workers at startup.

While TensorFlow waits for workers, it holds the GIL, and the signal handler that it
installs ignores SIGTERM. Workers therefore wait here first, where signals end the wait.
"""

import contextlib
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
    """
    missing = {*range(len(addresses))} - {index}
    deadline = time.monotonic() + seconds
    with _accept_connections(addresses[index]):
        while True:
            missing = {each for each in missing if not _is_reachable(addresses[each])}
            if not missing or time.monotonic() > deadline:
                return sorted(missing)
            time.sleep(_PAUSE)


@contextlib.contextmanager
def _accept_connections(address):
    """Listens at an address inside the context.

    The kernel completes connections, although no code accepts them.
    """
    host, port = _host_and_port(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # If the address is in use, TensorFlow reports it later.
        with contextlib.suppress(OSError):
            server.bind(("", port))
            server.listen(128)
        yield


def _is_reachable(address):
    try:
        socket.create_connection(_host_and_port(address), _ATTEMPT).close()
    except OSError:
        return False
    return True


def _host_and_port(address):
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
