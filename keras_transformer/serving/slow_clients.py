"""Time limits for clients that send or read too slowly."""

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from keras_transformer.serving.protocol import error_body


class _JsonErrorProtocol(H11Protocol):
    """HTTP/1.1 protocol that reports malformed requests as JSON."""

    def send_400_response(self, msg):
        headers = [("Content-Type", "application/json"), ("Connection", "close")]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=error_body(msg)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event))
        self.transport.close()


def slow_client_protocol(limits):
    """Returns uvicorn's HTTP/1.1 protocol class with additional limits.

    Args:
        limits: `Limits`. `idle_timeout` limits the time to send a request's headers
            and to read a response. `max_connections` limits open connections.
    """

    class Protocol(_JsonErrorProtocol):
        _headers_timer = None  # aborts the connection unless the headers arrive
        _response_timer = None  # aborts the connection unless the client reads

        def connection_made(self, transport):
            super().connection_made(transport)
            if len(self.connections) > limits.max_connections:
                transport.abort()
                return
            self._expect_request()

        def data_received(self, data):
            # The next request's first byte stops uvicorn's keep-alive timer.
            if self._headers_timer is None and self._is_between_requests():
                self._expect_request()
            super().data_received(data)
            if not self._is_between_requests():
                self._stop_headers_timer()

        def connection_lost(self, exc):
            self._stop_headers_timer()
            self.resume_writing()
            super().connection_lost(exc)

        def pause_writing(self):
            # The client is not reading the response.
            super().pause_writing()
            self._response_timer = self.loop.call_later(
                limits.idle_timeout, self.transport.abort
            )

        def resume_writing(self):
            super().resume_writing()
            if self._response_timer is not None:
                self._response_timer.cancel()
                self._response_timer = None

        def timeout_keep_alive_handler(self):
            super().timeout_keep_alive_handler()
            # uvicorn's close waits until the client has read the rest of the response.
            self.loop.call_later(limits.idle_timeout, self.transport.abort)

        def _is_between_requests(self):
            return self.cycle is None or self.cycle.response_complete

        def _expect_request(self):
            self._headers_timer = self.loop.call_later(limits.idle_timeout, self._abort)

        def _stop_headers_timer(self):
            if self._headers_timer is not None:
                self._headers_timer.cancel()
                self._headers_timer = None

        def _abort(self):
            self._headers_timer = None
            self.transport.abort()

    return Protocol
