"""Rendezvous of the workers at startup.

While TensorFlow waits for workers, it holds the GIL, and the signal handler that it
installs ignores SIGTERM. Workers therefore wait here first, where signals end the wait.
"""

import errno
import logging
import socket
import time

logger = logging.getLogger(__name__)

# Seconds between two attempts to reach a worker, and seconds until one times out.
_PAUSE = 0.2
_ATTEMPT = 2.0


def wait_for_workers(addresses, index, seconds):
    """Waits at most `seconds` until a process answers at the address of each worker.

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
    is_first = True
    while True:
        try:
            return socket.create_server(
                ("", port), family=family, backlog=128, dualstack_ipv6=is_dual_stack
            )
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise
        if is_first:
            logger.warning("port %s is in use; waiting for it", port)
        is_first = False
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
