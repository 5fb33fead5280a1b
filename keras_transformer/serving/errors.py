"""Errors that a client is told of, as TF-Serving tells them."""


class RequestError(Exception):
    """A request that gets an error: `{"error": message}`.

    Args:
        status: The HTTP status.
        message: What the client reads; never a path or a traceback.
        reason: Of the metric `rejected`, one word.
        retry_after: Seconds after which to try again, for statuses 429 and 503.
    """

    def __init__(self, status, message, reason="invalid", retry_after=None):
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason
        self.retry_after = retry_after


def invalid(message):
    return RequestError(400, message)


def not_found(message):
    return RequestError(404, message, "not_found")


def overloaded(message="The queue is full; try again later", retry_after=1):
    return RequestError(503, message, "overloaded", retry_after)


def too_late(message="Deadline exceeded"):
    return RequestError(504, message, "deadline")
