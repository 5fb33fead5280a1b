"""What a server accepts, and for how long."""

from typing import Annotated

from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field
from pydantic import model_validator

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]


class Limits(BaseModel):
    """Limits of the server; every one is checked before the model sees anything."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_body_bytes: Count = 1 << 20  # of a request; more is 413
    max_texts: Count = 256  # of a request; more is 400
    max_text_length: Count = 5_000  # characters of a text; more is 400
    max_ids: Count = 1 << 16  # of all rows of a request, their padding included

    max_batch_size: Count = 32  # texts that the model gets at once
    max_wait: Annotated[float, Field(ge=0)] = 0.005  # seconds for a batch to fill up
    queue_size: Count = 512  # texts that wait; more is 503

    body_timeout: Seconds = 10.0  # for a request to arrive whole; longer is 408
    request_timeout: Seconds = 60.0  # for an answer; longer is 504
    idle_timeout: Seconds = 10.0  # a connection that sends nothing is closed
    shutdown_timeout: Seconds = 30.0  # for requests in flight when told to stop
    max_connections: Count = 1024

    @model_validator(mode="after")
    def _a_request_fits(self):
        if self.max_texts > self.queue_size:
            raise ValueError(
                "max_texts must not exceed queue_size, or such a request would never "
                f"fit. Received: {self.max_texts} and {self.queue_size}."
            )
        return self
