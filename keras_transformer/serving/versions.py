"""The served version of a model, and its replacement by other versions."""

import asyncio
import logging
import math

from keras_transformer.serving.page import content_security_policy, render_page
from keras_transformer.untrusted import shorten

_LOG = logging.getLogger("keras_transformer.serving")


class Versions:
    """The served version of a model, which follows the newest version of an export.

    A new version is served after its warm-up, or never if the warm-up fails. A queued
    request runs on the version that validated it.

    Args:
        model: `ServedModel`, or an object with its attributes and methods.
        limits: `Limits` of the server.

    Attributes:
        model: The current version.
        page: The page at `/`, as bytes.
        policy: The page's Content-Security-Policy.
        is_warm: Whether the first version has run its warm-up requests.
    """

    def __init__(self, model, limits):
        self._limits = limits
        self.is_warm = False
        self._serve(model)

    def _serve(self, model):
        self.page = render_page(model, self._limits)
        self.policy = content_security_policy(self.page)
        self.model = model

    async def run(self, batcher):
        """Warms up, then follows the newest version until the batcher closes."""
        await self._warm_up(self.model, batcher)
        self.is_warm = batcher.is_open
        broken = None
        while self._limits.reload_interval is not None and batcher.is_open:
            await asyncio.sleep(self._limits.reload_interval)
            replacement = None
            try:
                replacement = await asyncio.to_thread(self.model.find_replacement)
                if replacement in (None, broken):
                    continue
                model = await asyncio.to_thread(self.model.reload)
                is_usable = await self._warm_up(model, batcher)
                if not batcher.is_open:
                    return
                if not is_usable:
                    broken, model = replacement, None  # frees the model's memory
                    continue
                self._serve(model)
                _LOG.info("%s: now serving version %s", model.name, model.version)
            except Exception as error:
                # `replacement` contains the size of the files, so a version that is
                # still being copied is tried again once its size has changed.
                broken = replacement
                _LOG.warning("the new version cannot be loaded: %s", shorten(error))

    async def _warm_up(self, model, batcher):
        """Runs the warm-up requests of a model. Returns whether all succeeded."""
        succeeded = True
        for signature, columns in model.warm_up_requests():
            try:
                # Clients may fill the queue, or it may be smaller than these requests.
                future = batcher.submit(
                    (model, signature), columns, math.inf, is_limited=False
                )
                await asyncio.wrap_future(future)
            except Exception as error:
                # A server that shuts down refuses the remaining requests.
                if not batcher.is_open:
                    return False
                _LOG.warning("warm-up of %s failed: %s", signature, shorten(error))
                succeeded = False
        return succeeded
