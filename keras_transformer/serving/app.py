"""The HTTP application: APIs of TF-Serving and LibreTranslate, metrics and the page."""

import asyncio
import contextlib
import logging
import time

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from keras_transformer.serving import libretranslate
from keras_transformer.serving.batcher import Batcher
from keras_transformer.serving.limits import (
    Limits,
    RequestError,
    check_host,
    deadline_exceeded,
    invalid,
    not_found,
    too_many_values,
)
from keras_transformer.serving.protocol import (
    error_body,
    format_response,
    parse_request,
)
from keras_transformer.serving.state import Monitoring, Versions

_LOG = logging.getLogger("keras_transformer.serving")
_JSON = "application/json"
# Prometheus's usual path, and TF-Serving's.
_METRICS_PATHS = ("/metrics", "/monitoring/prometheus/metrics")
# Errors that leave the body unread, at least in part. On an open connection, uvicorn
# would read and discard the rest, however large it is, before the next request.
_CLOSING = (403, 408, 413, 415)
# Seconds to read and discard such a body. If a connection with unread bytes is closed,
# the client may see a reset connection in place of the error.
_DISCARD_SECONDS = 5.0
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def build_app(model, limits=None, hosts=(), languages=None):
    """Builds a FastAPI application that serves one model.

    Args:
        model: `ServedModel`, or an object with its attributes and methods.
        limits: `Limits`. If `None`, the defaults are used.
        hosts: Host names that requests may address, in addition to `localhost` and
            IP addresses.
        languages: Languages for LibreTranslate's API, from `parse_languages`. If
            `None`, they are read from the model's name.

    Returns:
        `FastAPI`. Its state has `batcher`, which is closed at shutdown, and `versions`.
    """
    limits = limits or Limits()
    monitoring = Monitoring(lambda: batcher.num_waiting)
    versions = Versions(model, limits)

    # The batcher's keys are pairs of a `ServedModel` and the name of a signature.
    batcher = Batcher(
        lambda key, columns: key[0].run(key[1], columns),
        lambda key: key[0].can_merge(key[1]),
        lambda key: min(limits.max_batch_size, key[0].limits.max_batch_size),
        limits,
        lambda key, *counts: monitoring.count_batch(key[1], *counts),
    )

    @contextlib.asynccontextmanager
    async def lifespan(app):
        versions_task = asyncio.create_task(versions.run(batcher))
        yield
        versions_task.cancel()
        # `server.py` closes the batcher before uvicorn ends the connections.
        if batcher.is_open:
            await asyncio.to_thread(batcher.close, limits.shutdown_timeout)

    app = FastAPI(
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        title="serve",
    )
    app.state.batcher = batcher
    app.state.versions = versions
    _add_model_routes(app, model.name, limits)
    _add_server_routes(app, monitoring)
    languages = languages or libretranslate.parse_model_name(model.name)
    libretranslate.add_routes(app, limits, languages, _read_body)
    _add_middleware(app, model.name, monitoring, hosts)
    return app


def _add_model_routes(app, name, limits):
    """Adds TF-Serving's routes for a model."""
    path = f"/v1/models/{name}"
    version_path = f"{path}/versions/{{version}}"
    batcher, versions = app.state.batcher, app.state.versions

    def find(request):
        """Returns the current model, unless the request's path names another one."""
        version = request.path_params.get("version")
        if version not in (None, str(versions.model.version)):
            raise _missing_version_error(name, version)
        return versions.model

    @app.post(f"{path}:predict")
    @app.post(f"{version_path}:predict")
    async def predict(request: Request):
        model = find(request)
        body = await _read_body(request, limits)
        parsed = parse_request(body, model.inputs, limits)
        if model.estimate_values(parsed.signature, parsed.columns) > limits.max_values:
            raise too_many_values(limits.max_values)
        timeout = limits.request_timeout
        key = (model, parsed.signature)
        future = batcher.submit(key, parsed.columns, timeout)
        outputs = await _wait_for(future, request, timeout)
        content = await asyncio.to_thread(_format, outputs, parsed, model.limits)
        return Response(content, media_type=_JSON)

    @app.get(path)
    @app.get(version_path)
    async def status(request: Request):
        model = find(request)
        state = "AVAILABLE" if versions.is_warm else "LOADING"
        return {
            "model_version_status": [
                {
                    "version": str(model.version),
                    "state": state if batcher.is_open else "UNLOADING",
                    "status": {"error_code": "OK", "error_message": ""},
                }
            ]
        }

    @app.get(f"{path}/metadata")
    @app.get(f"{version_path}/metadata")
    async def metadata(request: Request):
        model = find(request)
        return {
            "model_spec": {
                "name": model.name,
                "signature_name": "",
                "version": str(model.version),
            },
            "metadata": model.metadata,
        }


def _add_server_routes(app, monitoring):
    """Adds the routes for the page, health, readiness and metrics."""
    batcher, versions = app.state.batcher, app.state.versions

    @app.api_route("/", methods=["GET", "HEAD"])
    async def root():
        headers = {"Content-Security-Policy": versions.policy}
        return Response(versions.page, media_type="text/html", headers=headers)

    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health():
        return _state("ok" if batcher.is_working else "unavailable", "ok")

    @app.api_route("/ready", methods=["GET", "HEAD"])
    async def ready():
        if not batcher.is_open:
            return _state("shutting down", "ready")
        return _state("ready" if versions.is_warm else "warming up", "ready")

    async def metrics():
        return Response(monitoring.text(), media_type=monitoring.content_type)

    for path in _METRICS_PATHS:
        app.get(path)(metrics)


def _state(state, good):
    """Returns a response that contains `state`, with status 503 unless it is `good`."""
    status = 200 if state == good else 503
    return Response(f'{{"status":"{state}"}}', status, media_type=_JSON)


def _add_middleware(app, name, monitoring, hosts):
    """Adds checks of hosts, counts of requests, and errors as `{"error": message}`."""

    @app.middleware("http")
    async def observe(request, call_next):
        started = time.monotonic()
        try:
            check_host(request.headers.get("host", ""), hosts)
            response = await call_next(request)
        except RequestError as error:
            await _discard_body(request, error)
            response = _error_response(error, monitoring)
        # Details are logged, but not sent to a client.
        except Exception:
            _LOG.exception("request failed")
            error = RequestError(500, "Internal error", "internal")
            response = _error_response(error, monitoring)
        response.headers.update(_HEADERS)
        seconds = time.monotonic() - started
        kind = _request_kind(request.url.path)
        monitoring.count_response(kind, response.status_code, seconds)
        return response

    @app.exception_handler(HTTPException)
    async def handle_http_error(request, error):
        return _error_response(_path_error(request, error, name), monitoring)


def _format(outputs, request, limits):
    """Returns the body of a response, which has `warnings` if there are any."""
    if "translations" in outputs:
        from keras_transformer.decoding.warnings import output_warnings

        found = output_warnings(request.columns["inputs"], outputs, limits)
        outputs = outputs | ({"warnings": found} if any(found) else {})
    return format_response(outputs, request.by_row)


async def _read_body(request, limits, types=(_JSON,)):
    """Reads a body of one of `types`, unless it is too large or arrives too slowly."""
    # Browsers send some other types across origins without a CORS preflight. Requiring
    # JSON keeps out requests from pages of other sites.
    content_type = request.headers.get("content-type", "").partition(";")[0].strip()
    if content_type.lower() not in types:
        raise RequestError(415, f"Content-Type must be {types[0]}", "content_type")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limits.max_body_bytes:
        raise _too_large_error(limits)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_timeout):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limits.max_body_bytes:
                    raise _too_large_error(limits)
    except TimeoutError:
        raise RequestError(408, "The request took too long to arrive", "slow") from None
    except ClientDisconnect:
        raise _disconnection_error() from None
    return bytes(body)


async def _discard_body(request, error):
    """Reads the rest of a body for a short time if `error` closes the connection."""
    # A client that asked whether to send the body has not sent it.
    if error.status not in _CLOSING or "expect" in request.headers:
        return
    with contextlib.suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(_DISCARD_SECONDS):
            message = {"more_body": True}
            while message.get("more_body"):
                message = await request.receive()


async def _wait_for(future, request, timeout):
    """Returns the result of a future. Cancels it on timeout or disconnection."""
    wrapped = asyncio.wrap_future(future)
    # After the body, the only ASGI message left is `http.disconnect`.
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait(
            {wrapped, gone}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
        )
        if wrapped.done():
            return wrapped.result()
        raise _disconnection_error() if gone.done() else deadline_exceeded()
    finally:
        gone.cancel()
        wrapped.cancel()
        future.cancel()


def _disconnection_error():
    return RequestError(400, "The client has disconnected", "gone")


def _too_large_error(limits):
    return RequestError(
        413, f"A request must have at most {limits.max_body_bytes:,} bytes", "size"
    )


def _error_response(error, monitoring):
    monitoring.rejected.labels(error.reason).inc()
    response = Response(error_body(error.message), error.status, media_type=_JSON)
    response.headers.update(error.headers)
    if error.status in _CLOSING:
        response.headers["Connection"] = "close"
    return response


def _path_error(request, error, model_name):
    """Returns the error for an unknown path or method, worded as in TF-Serving."""
    path = request.url.path
    malformed = f"Malformed request: {request.method} {path[:100]}"
    if error.status_code == 405:
        return RequestError(405, malformed, "method", headers=error.headers)
    if path.startswith("/v1/models/"):
        target, _, command = path.removeprefix("/v1/models/").partition(":")
        if command not in ("", "predict"):
            return invalid(malformed)
        name, _, version = target.removesuffix("/metadata").partition("/versions/")
        if version:
            return _missing_version_error(name, version)
        if name != model_name and "/" not in name:
            return not_found(f"Servable not found for request: Latest({name[:100]})")
    return not_found(malformed)


def _missing_version_error(name, version):
    servable = f"Specific({name[:100]}, {version[:20]})"
    return not_found(f"Servable not found for request: {servable}")


def _request_kind(path):
    """Maps a path to a fixed label, so that clients cannot add labels to metrics."""
    if path.endswith(":predict"):
        return "predict"
    if path.startswith("/v1/models/"):
        return "model"
    names = {"/": "page", "/health": "health", "/ready": "health"}
    names["/translate"] = "translate"
    return {**names, **dict.fromkeys(_METRICS_PATHS, "metrics")}.get(path, "other")
