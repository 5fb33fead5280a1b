"""Limits on requests, responses and waiting times."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]


class Limits(BaseModel):
    """Limits of a server. Requests are checked before the model runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # A request that exceeds `max_body_bytes` gets status 413. One that exceeds any of
    # the next four limits gets status 400.
    max_body_bytes: Count = 1 << 20
    max_texts: Count = 256
    max_text_length: Count = 5_000  # characters
    max_ids: Count = 1 << 16  # including padding
    max_values: Count = 1 << 20  # numbers and texts in a response

    max_batch_size: Count = 32  # rows
    max_wait: Annotated[float, Field(ge=0)] = 0.005  # seconds for a batch to fill up
    queue_size: Count = 512  # rows; beyond it, requests get status 503

    body_timeout: Seconds = 10.0  # to receive a request, else status 408
    request_timeout: Seconds = 60.0  # to answer a request, else status 504
    idle_timeout: Seconds = 10.0  # to send headers or read a response
    shutdown_timeout: Seconds = 30.0  # to finish requests in progress
    max_connections: Count = 1024
    reload_interval: Seconds | None = 1.0  # between version checks; None: no checks

    @model_validator(mode="after")
    def _check_queue_size(self):
        if self.max_texts > self.queue_size:
            raise ValueError(
                "max_texts must not exceed queue_size, because a request with more "
                "than queue_size texts never fits into the queue. Received: "
                f"max_texts={self.max_texts}, queue_size={self.queue_size}."
            )
        return self
