"""uvicorn around the application: time limits on connections, and a clean end."""

import asyncio
import contextlib
import signal
import socket

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from keras_transformer.serving.app import build_app
from keras_transformer.serving.limits import Limits


def serve(model, host="127.0.0.1", port=8501, limits=None, started=None):
    """Serves until SIGTERM or Ctrl-C, then finishes what is in flight.

    Args:
        model: `ServedModel`.
        host: Address to listen at; 127.0.0.1 is this machine only.
        port: 0 for any free one.
        limits: `Limits`.
        started: Called with the URL when requests are taken.

    Raises:
        OSError: the address cannot be listened at.
    """
    limits = limits or Limits()
    listening = listen(host, port)
    server = build_server(model, limits)
    with listening, _quiet_signals():
        asyncio.run(_run(server, listening, host, started))


def listen(host, port):
    """A socket that listens at an address.

    Raises:
        OSError: it cannot, with the address as its file's name.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
        except OSError:
            listening.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno or 1, reason, f"{host}:{port}") from None
    return listening


def build_server(model, limits):
    """A `uvicorn.Server` for a model."""
    return uvicorn.Server(
        uvicorn.Config(
            build_app(model, limits),
            http=_protocol(limits),
            loop="asyncio",
            ws="none",
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=limits.idle_timeout,
            timeout_graceful_shutdown=limits.shutdown_timeout,
        )
    )


def _protocol(limits):
    """uvicorn's HTTP/1.1 with limits that it lacks: headers, answers, connections."""

    class Protocol(H11Protocol):
        _timer = None
        _unread = None

        def connection_made(self, transport):
            super().connection_made(transport)
            if len(self.connections) > limits.max_connections:
                transport.abort()
                return
            self._expect_request()

        def data_received(self, data):
            # Of a request after the first, each byte would stop uvicorn's timer.
            if self._timer is None and self._between_requests():
                self._expect_request()
            super().data_received(data)
            if not self._between_requests():
                self._stop_timer()

        def connection_lost(self, exc):
            self._stop_timer()
            self.resume_writing()
            super().connection_lost(exc)

        def pause_writing(self):
            # The client does not read its answer.
            super().pause_writing()
            self._unread = self.loop.call_later(
                limits.idle_timeout, self.transport.abort
            )

        def resume_writing(self):
            super().resume_writing()
            if self._unread is not None:
                self._unread.cancel()
                self._unread = None

        def timeout_keep_alive_handler(self):
            super().timeout_keep_alive_handler()
            # Closing waits for what the client has not read.
            self.loop.call_later(limits.idle_timeout, self.transport.abort)

        def _between_requests(self):
            return self.cycle is None or self.cycle.response_complete

        def _expect_request(self):
            self._timer = self.loop.call_later(limits.idle_timeout, self._give_up)

        def _stop_timer(self):
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _give_up(self):
            self._timer = None
            self.transport.abort()

    return Protocol


async def _run(server, listening, host, started):
    async def tell():
        while not server.started:
            await asyncio.sleep(0.01)
        port = listening.getsockname()[1]
        started(f"http://{f'[{host}]' if ':' in host else host}:{port}/")

    telling = asyncio.create_task(tell()) if started else None
    await server.serve(sockets=[listening])
    if telling is not None:
        telling.cancel()


@contextlib.contextmanager
def _quiet_signals():
    """uvicorn raises the signal that ended it once more: let that have no effect."""
    before = {
        number: signal.signal(number, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
