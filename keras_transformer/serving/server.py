"""The uvicorn server, which runs the application until a signal stops it."""

import asyncio
import errno
import signal
import socket
import time

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from keras_transformer.serving.app import build_app
from keras_transformer.serving.limits import Limits
from keras_transformer.serving.protocol import error_body
from keras_transformer.signals import handle_signals

# Minimum number of seconds to send responses at shutdown.
_RESPONSE_SECONDS = 2.0


def serve(
    model,
    host="127.0.0.1",
    port=8501,
    limits=None,
    started=None,
    hosts=(),
    listening=None,
    languages=None,
):
    """Serves a model until SIGTERM or Ctrl-C, then finishes the requests in progress.

    Args:
        model: `ServedModel`.
        host: Address to bind; 127.0.0.1 accepts connections from this machine only.
        port: Port; 0 picks a free one.
        limits: `Limits`. If `None`, the defaults are used.
        started: Called with the server's URL after the warm-up.
        hosts: Host names that requests may address, in addition to `host`,
            `localhost` and IP addresses.
        listening: Socket from `listen`. If `None`, the address is bound.
        languages: See `build_app`.

    Raises:
        OSError: If the address cannot be bound.
    """
    limits = limits or Limits()
    listening = listening or listen(host, port)
    server = build_server(model, limits, {host, *hosts}, languages)
    # uvicorn raises the signal that stops it again.
    ignore = dict.fromkeys((signal.SIGINT, signal.SIGTERM), lambda *_: None)
    with listening, handle_signals(ignore):
        asyncio.run(_run(server, listening, host, started))


def listen(host, port):
    """Binds an address, so that no other program can take its port.

    Args:
        host: Name or IP address.
        port: Port; 0 picks a free one.

    Returns:
        The listening socket.

    Raises:
        OSError: If the address cannot be bound. Its `filename` is the address, such as
            `"localhost:8501"`.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            listening.listen()
        except OSError:
            listening.close()
            raise
    # A host name that cannot be encoded raises `UnicodeError`.
    except (OSError, UnicodeError) as error:
        number, reason = getattr(error, "errno", None), getattr(error, "strerror", None)
        raise OSError(
            number or errno.EINVAL, reason or str(error), f"{host}:{port}"
        ) from None
    return listening


def build_server(model, limits, hosts=(), languages=None):
    """Returns a `uvicorn.Server` for a model."""
    return _Server(
        uvicorn.Config(
            build_app(model, limits, hosts, languages),
            http=_protocol(limits),
            loop="asyncio",
            ws="none",
            # uvicorn's own logging setup closes the handlers of other libraries.
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=limits.idle_timeout,
            timeout_graceful_shutdown=limits.shutdown_timeout,
        )
    )


def _protocol(limits):
    """Returns uvicorn's HTTP/1.1 protocol with limits on clients."""

    class Protocol(H11Protocol):
        def connection_made(self, transport):
            super().connection_made(transport)
            if len(self.connections) > limits.max_connections:
                transport.abort()
            self._watch(None)

        def _watch(self, before):
            """Aborts the connection if it has waited for its client since `before`.

            uvicorn alone would wait forever for the headers of a request, and for a
            client that does not read the response.
            """
            if self not in self.connections:
                return
            unread = self.transport.get_write_buffer_size()
            is_waiting = unread or self.cycle is None or self.cycle.response_complete
            now = is_waiting and (self.cycle, unread)
            if now and now == before:
                self.transport.abort()
            self.loop.call_later(limits.idle_timeout, self._watch, now)

        def send_400_response(self, msg):
            headers = [("Content-Type", "application/json"), ("Connection", "close")]
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=error_body(msg)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
            self.transport.close()

    return Protocol


class _Server(uvicorn.Server):
    """A server that rejects new requests (503) while it finishes those in progress."""

    async def shutdown(self, sockets=None):
        batcher = self.config.app.state.batcher
        seconds = self.config.timeout_graceful_shutdown
        until = time.monotonic() + seconds
        batcher.drain()
        while batcher.is_working and not self.force_exit and time.monotonic() < until:
            await asyncio.sleep(0.02)
        batcher.abandon()
        # uvicorn closes connections without a request at once. So it must not close
        # those whose request is on its way.
        for server in self.servers:
            server.close()
        await asyncio.sleep(0.1)
        # uvicorn waits this long for the responses to be sent.
        self.config.timeout_graceful_shutdown = max(
            until - time.monotonic(), _RESPONSE_SECONDS
        )
        await super().shutdown(sockets)


async def _run(server, listening, host, started):
    async def report():
        while not (server.started and server.config.app.state.versions.is_warm):
            await asyncio.sleep(0.01)
        port = listening.getsockname()[1]
        started(f"http://{f'[{host}]' if ':' in host else host}:{port}/")

    reporting = asyncio.create_task(report()) if started else None
    await server.serve(sockets=[listening])
    if reporting is not None:
        reporting.cancel()
