"""Errors of requests, in TF-Serving's format."""


class RequestError(Exception):
    """An error that the server sends to the client as `{"error": message}`.

    Args:
        status: HTTP status.
        message: Text for the client. Must not contain paths or tracebacks.
        reason: One word, for the label `reason` of the metric `rejected`.
        retry_after: Seconds after which the client may try again, for status 503.
        headers: Dict of additional response headers.
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
