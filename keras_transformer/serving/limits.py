"""What a request may be, and the errors of requests that are refused."""

import ipaddress
import re
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]


class Limits(BaseModel):
    """Limits of a server. Requests are checked before the model runs.

    Attributes:
        max_body_bytes: Maximum size of a request, else status 413.
        max_texts: Maximum number of texts in a request, else status 400.
        max_text_length: Maximum number of characters of a text, else status 400.
        max_ids: Maximum number of ids in a request, with padding, else status 400.
        max_values: Maximum number of numbers and texts in a response, else status 400.
        max_batch_size: Maximum number of rows that are computed together.
        max_wait: Seconds for a batch to fill up.
        queue_size: Maximum number of waiting rows, else status 503.
        body_timeout: Seconds to receive a request, else status 408.
        request_timeout: Seconds to answer a request, else status 504.
        idle_timeout: Seconds to send headers or to read a response.
        shutdown_timeout: Seconds to finish requests in progress.
        max_connections: Maximum number of open connections.
        reload_interval: Seconds between checks for a new version, or `None` for none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_body_bytes: Count = 1 << 20
    max_texts: Count = 256
    max_text_length: Count = 5_000
    max_ids: Count = 1 << 16
    max_values: Count = 1 << 20
    max_batch_size: Count = 32
    max_wait: Annotated[float, Field(ge=0)] = 0.005
    queue_size: Count = 512
    body_timeout: Seconds = 10.0
    request_timeout: Seconds = 60.0
    idle_timeout: Seconds = 10.0
    shutdown_timeout: Seconds = 30.0
    max_connections: Count = 1024
    reload_interval: Seconds | None = 1.0

    @model_validator(mode="after")
    def _check_queue_size(self):
        if self.max_texts > self.queue_size:
            raise ValueError(
                "max_texts must not exceed queue_size, because a request with more "
                "than queue_size texts never fits into the queue. Received: "
                f"max_texts={self.max_texts}, queue_size={self.queue_size}."
            )
        return self


class RequestError(Exception):
    """An error that the server sends to the client as `{"error": message}`.

    The message must not contain paths or tracebacks. `reason` is one word, for the
    label of the metric `rejected`. A client may try again `retry_after` seconds later.
    """

    def __init__(
        self, status, message, reason="invalid", retry_after=None, headers=None
    ):
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)


def invalid(message):
    return RequestError(400, message)


def not_found(message):
    return RequestError(404, message, "not_found")


def overloaded(message="The queue is full. Try again later.", retry_after=1):
    return RequestError(503, message, "overloaded", retry_after)


def shutting_down():
    error = overloaded("The server is shutting down", retry_after=5)
    # The client's next request opens a connection, to the server's successor.
    error.headers["Connection"] = "close"
    return error


def deadline_exceeded():
    return RequestError(504, "Deadline exceeded", "deadline")


def too_many_values(max_values):
    return invalid(
        f"A response must contain at most {max_values:,} values. Send fewer or shorter "
        "rows."
    )


def check_host(header, allowed):
    """Raises `RequestError` unless the `Host` header names this server.

    This prevents DNS rebinding, in which the domain name of a web page is made to
    resolve to this server's address, so that scripts of the page may read responses of
    the server. Only DNS names can be rebound to another address, so IP addresses are
    accepted, like `localhost` and the names in `allowed`. An empty header is accepted,
    because the attack needs a browser, and browsers always send the header.
    """
    name = _name_of(header)
    if not name or name in {"localhost", *map(_name_of, allowed)}:
        return
    try:
        ipaddress.ip_address(name)
    except ValueError:
        raise RequestError(
            403,
            "Host is not allowed. To allow it, start the server with --allow-host",
            "host",
        ) from None


def is_host_name(text):
    """Returns whether `text` is a host name or an IP address. It may have a port."""
    return re.fullmatch(r"[\w.-]+|[0-9a-f:.]+", _name_of(text)) is not None


def _name_of(header):
    """Returns the name in a `Host` header in lower case, without port and final dot."""
    return re.sub(r":\d*$", "", header).strip("[]").rstrip(".").lower()
