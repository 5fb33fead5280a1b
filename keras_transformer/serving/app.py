"""The HTTP application: TF-Serving's REST paths, health, metrics and the page."""

import asyncio
import contextlib
import logging
import time

from fastapi import FastAPI
from fastapi import Request
from fastapi import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from keras_transformer.serving.batcher import Batcher
from keras_transformer.serving.errors import RequestError
from keras_transformer.serving.errors import invalid
from keras_transformer.serving.errors import not_found
from keras_transformer.serving.errors import too_late
from keras_transformer.serving.limits import Limits
from keras_transformer.serving.monitoring import Monitoring
from keras_transformer.serving.page import page
from keras_transformer.serving.page import policy
from keras_transformer.serving.protocol import error_body
from keras_transformer.serving.protocol import format_response
from keras_transformer.serving.protocol import parse_request

_LOG = logging.getLogger("keras_transformer.serving")
_JSON = "application/json"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def build_app(model, limits=None):
    """Builds a FastAPI application that serves one model.

    Args:
        model: `ServedModel`, or any object with its attributes and methods.
        limits: `Limits`.

    Returns:
        `FastAPI`; its state has `batcher`, closed when the application shuts down.
    """
    limits = limits or Limits()
    monitoring = Monitoring(lambda: batcher.waiting)
    batcher = Batcher(
        model.run,
        model.merges,
        max_batch_size=min(
            limits.max_batch_size, model.max_batch_size or limits.max_batch_size
        ),
        max_wait=limits.max_wait,
        queue_size=limits.queue_size,
        observe=monitoring.batch,
    )

    @contextlib.asynccontextmanager
    async def lifespan(app):
        yield
        await asyncio.to_thread(batcher.close, limits.shutdown_timeout)

    app = FastAPI(
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        title="serve",
    )
    app.state.batcher = batcher
    _add_model_routes(app, model, batcher, limits)
    _add_server_routes(app, batcher, monitoring, page(model, limits))
    _add_error_handlers(app, model, monitoring)
    return app


def _add_model_routes(app, model, batcher, limits):
    """Adds TF-Serving's routes of a model."""
    path = f"/v1/models/{model.name}"
    version = f"{path}/versions/{model.version}"

    @app.post(f"{path}:predict")
    @app.post(f"{version}:predict")
    async def predict(request: Request):
        body = await _body(request, limits)
        asked = parse_request(body, model.inputs, limits)
        future = batcher.submit(asked.signature, asked.columns, limits.request_timeout)
        try:
            outputs = await asyncio.wait_for(
                asyncio.wrap_future(future), limits.request_timeout
            )
        except TimeoutError:
            raise too_late() from None
        return Response(format_response(outputs, asked.by_row), media_type=_JSON)

    @app.get(path)
    @app.get(version)
    async def status():
        return {
            "model_version_status": [
                {
                    "version": str(model.version),
                    "state": "AVAILABLE" if batcher.alive else "UNLOADING",
                    "status": {"error_code": "OK", "error_message": ""},
                }
            ]
        }

    @app.get(f"{path}/metadata")
    @app.get(f"{version}/metadata")
    async def metadata():
        return {
            "model_spec": {
                "name": model.name,
                "signature_name": "",
                "version": str(model.version),
            },
            "metadata": model.metadata,
        }


def _add_server_routes(app, batcher, monitoring, whole_page):
    """Adds the page, the health check, and the metrics."""
    page_headers = {"Content-Security-Policy": policy(whole_page)}

    @app.get("/")
    async def root():
        return Response(whole_page, media_type="text/html", headers=page_headers)

    @app.get("/health")
    async def health():
        if batcher.alive:
            return {"status": "ok"}
        return Response('{"status":"unavailable"}', 503, media_type=_JSON)

    @app.get("/metrics")
    @app.get("/monitoring/prometheus/metrics")  # TF-Serving's path
    async def metrics():
        return Response(monitoring.text(), media_type=monitoring.content_type)


def _add_error_handlers(app, model, monitoring):
    """Counts all requests and turns all errors into `{"error": message}`."""

    @app.middleware("http")
    async def observe(request, call_next):
        started = time.monotonic()
        try:
            response = await call_next(request)
        except RequestError as error:
            response = _refusal(error, monitoring)
        # Details go to the log only, never to a client.
        except Exception:
            _LOG.exception("request failed")
            response = _refusal(
                RequestError(500, "Internal error", "internal"), monitoring
            )
        response.headers.update(_HEADERS)
        kind = _kind(request.url.path)
        monitoring.answered(kind, response.status_code, time.monotonic() - started)
        return response

    @app.exception_handler(RequestError)
    async def refuse(request, error):
        return _refusal(error, monitoring)

    @app.exception_handler(HTTPException)
    async def unknown_path(request, error):
        return _refusal(_of_path(request, error.status_code, model), monitoring)


async def _body(request, limits):
    """Reads the body unless it is too large or too slow."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limits.max_body_bytes:
        raise _too_large(limits)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_timeout):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limits.max_body_bytes:
                    raise _too_large(limits)
    except TimeoutError:
        raise RequestError(408, "The request took too long to arrive", "slow") from None
    except ClientDisconnect:
        raise RequestError(400, "The request ended too early", "gone") from None
    return bytes(body)


def _too_large(limits):
    return RequestError(
        413, f"A request may have {limits.max_body_bytes:,} bytes at most", "size"
    )


def _refusal(error, monitoring):
    monitoring.rejected(error.reason)
    response = Response(error_body(error.message), error.status, media_type=_JSON)
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    if error.status in (408, 413):
        # The rest of the body would be parsed as the next request.
        response.headers["Connection"] = "close"
    return response


def _of_path(request, status, model):
    """Returns the error for an unknown path or method."""
    path = request.url.path
    where = f"{request.method} {path[:100]}"
    if status == 405:
        return RequestError(405, f"Malformed request: {where}", "method")
    if path.startswith("/v1/models/"):
        asked, _, verb = path.removeprefix("/v1/models/").partition(":")
        if verb not in ("", "predict"):
            return invalid(f"Malformed request: {where}")
        name, _, version = asked.partition("/versions/")
        if name.partition("/")[0] != model.name or version:
            return not_found(f"Servable not found for request: {asked[:100]}")
    return not_found(f"Malformed request: {where}")


def _kind(path):
    """Maps a path to one of a few labels, so that clients cannot create metrics."""
    if path.endswith(":predict"):
        return "predict"
    if path.startswith("/v1/models/"):
        return "model"
    return {"/": "page", "/health": "health", "/metrics": "metrics"}.get(path, "other")
