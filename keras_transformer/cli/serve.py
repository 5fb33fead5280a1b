"""keras-transformer serve"""

import contextlib
import errno
import os
import pathlib
import tempfile
from typing import Annotated

from typer import Argument, Option

import keras_transformer as kt
from keras_transformer.cli import console, options
from keras_transformer.errors import UserError


def serve(
    model: Annotated[
        pathlib.Path,
        Argument(
            metavar="FOLDER",
            help="Exported model, e.g. saved_models/NAME, preset, packaged model, "
            "or hf://OWNER/NAME.",
        ),
    ],
    port: Annotated[
        int, Option(min=0, max=65535, help="Port; 0 picks a free one.")
    ] = 8501,
    host: Annotated[
        str,
        Option(
            metavar="ADDRESS",
            help="Address to bind; 0.0.0.0 accepts connections from any host.",
        ),
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str],
        Option(metavar="NAME", help="Additional host name to accept. Repeatable."),
    ] = (),
    name: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Model's name in URLs (default: the folder's or repository's name).",
        ),
    ] = None,
    languages: Annotated[
        str | None,
        Option(
            metavar="SOURCE,TARGET",
            help="Language codes for LibreTranslate's API (default: those at the end "
            "of the model's name). For a multilingual model, all languages with the "
            "model's codes, such as en=eng_Latn,de=deu_Latn,fr=fra_Latn.",
        ),
    ] = None,
    max_batch_size: Annotated[
        int, Option(min=1, help="Maximum rows per batch of the model.")
    ] = 32,
    max_wait_ms: Annotated[
        float,
        Option(min=0, max=60_000, help="Milliseconds to wait for a batch to fill up."),
    ] = 5,
    queue_size: Annotated[
        int, Option(min=1, help="Maximum queued rows; further requests get 503.")
    ] = 512,
    max_texts: Annotated[
        int | None,
        Option(
            min=1,
            help="Maximum rows per request (default: 256, at most --queue-size).",
        ),
    ] = None,
    max_text_length: Annotated[
        int, Option(min=1, help="Maximum characters per text; longer ones get 400.")
    ] = 5_000,
    max_body_bytes: Annotated[
        int, Option(min=1, help="Maximum bytes per request; larger ones get 413.")
    ] = 1 << 20,
    timeout: Annotated[
        float, Option(min=0.1, max=86_400, help="Seconds before a request gets 504.")
    ] = 60,
    no_reload: Annotated[
        bool, Option(help="Keep the version loaded at startup.")
    ] = False,
    allow_unsafe: options.AllowUnsafe = False,
):
    """Serve a model over HTTP, with TF-Serving's REST API.

    It also answers LibreTranslate's API, and its root URL shows a page to try the
    model. It follows the newest version without losing requests. There is no
    authentication; the default address 127.0.0.1 accepts connections from this machine
    only.

    A row is one of the instances in a request: a text, or a pair to score.

    \b
    keras-transformer serve saved_models/mine
    keras-transformer serve phrases
    curl -H "Content-Type: application/json" \\
      -d '{"instances": ["A man rides a bike."]}' \\
      http://127.0.0.1:8501/v1/models/mine:predict
    """
    path, model = model, console.find_model(model)
    console.require_export(model)
    console.require_extra("serve", "fastapi", "uvicorn", "prometheus_client")
    if max_texts is None:
        max_texts = min(256, queue_size)
    if max_texts > queue_size:
        raise UserError(
            f"--max-texts {max_texts}: must not exceed --queue-size, which is "
            f"{queue_size}"
        )
    from keras_transformer import serving

    for each in allow_host:
        if not serving.is_host_name(each):
            raise UserError(
                f"--allow-host {each}: must be a host name, such as www.example.org"
            )
    pair = None if languages is None else serving.parse_languages(languages)
    if languages is not None and pair is None:
        raise UserError(
            f"--languages {languages}: must be two codes, such as en,de, "
            "or CODE=LANGUAGE for each language of a multilingual model"
        )
    limits = serving.Limits(
        max_batch_size=max_batch_size,
        max_wait=max_wait_ms / 1000,
        queue_size=queue_size,
        max_texts=max_texts,
        max_text_length=max_text_length,
        max_body_bytes=max_body_bytes,
        request_timeout=timeout,
        reload_interval=None if no_reload else 1.0,
    )

    def report_url(url):
        console.print_status(f"{served.name}, version {served.version}, at {url}")

    # An occupied port is reported before the model is loaded.
    with _listen(host, port) as listening:
        console.print_status("loading the model")
        if allow_unsafe:
            console.warn_unsafe(model)
        console.load_tensorflow()
        with _export_if_preset(model, path) as folder:
            with console.quiet_libraries():
                served = serving.ServedModel(folder, name, allow_unsafe)
            known = served.limits.languages if served.limits else []
            for _, _, *own in pair or ():
                if not {*own} <= {*known}:
                    hint = kt.recipes.keys.name_hint(own[0], known)
                    hint = hint or ". It is not multilingual"
                    raise UserError(
                        f"--languages: the model has no language {own[0]}{hint}"
                    )
            serving.serve(
                served, host, port, limits, report_url, allow_host, listening, pair
            )
    console.print_status("stopped")


def _listen(host, port):
    """Returns a socket that listens at an address, unless another program does."""
    from keras_transformer import serving

    try:
        return serving.listen(host, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise UserError(
            f"{error.filename}: another program uses this port. Choose another with "
            "--port, or a free one with --port 0"
        ) from None


@contextlib.contextmanager
def _export_if_preset(model, path):
    """Yields a SavedModel's folder: `model`, or a temporary export of a preset.

    The folder of an export has the name of the preset's folder, or, if `path` is
    `hf://OWNER/NAME`, of the repository.
    """
    if model.kind != "preset":
        yield model.path
        return
    # Unlike `resolve`, `abspath` keeps the name of a symbolic link. "." has no name.
    folder = pathlib.Path(os.path.abspath(model.path))
    name = folder.name
    if kt.saving.names.is_hub_name(path):
        name = kt.saving.hub.repository_name(path)
    console.print_status(f"exporting {name}")
    opened = console.open_translator(model)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary) / name
        # The requests are for TF-Serving only.
        kt.export.export_translator(opened, folder, warmup_requests=False)
        yield folder
