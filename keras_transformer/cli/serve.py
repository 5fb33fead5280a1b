"""keras-transformer serve"""

import importlib.util
import pathlib
from typing import Annotated

import typer

from keras_transformer.cli.console import existing
from keras_transformer.cli.console import load_tensorflow
from keras_transformer.cli.console import quiet_libraries
from keras_transformer.cli.console import say
from keras_transformer.cli.console import verb
from keras_transformer.errors import UserError

_NEEDED = ("fastapi", "uvicorn", "prometheus_client")


@verb
def serve(
    model: Annotated[
        pathlib.Path,
        typer.Argument(metavar="FOLDER", help="An export: saved_models/NAME."),
    ],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="0: any that is free.")
    ] = 8501,
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0 is all the world.")
    ] = "127.0.0.1",
    name: Annotated[
        str | None, typer.Option(help="In URLs. Default: the folder's name.")
    ] = None,
    max_batch_size: Annotated[
        int, typer.Option(min=1, help="Texts that the model gets at once.")
    ] = 32,
    max_wait_ms: Annotated[
        float, typer.Option(min=0, help="Milliseconds for a batch to fill up.")
    ] = 5,
    queue_size: Annotated[
        int, typer.Option(min=1, help="Texts that wait; with more, 503.")
    ] = 512,
    max_texts: Annotated[
        int | None, typer.Option(min=1, help="Of a request. Default: 256.")
    ] = None,
    max_text_length: Annotated[
        int, typer.Option(min=1, help="Characters of a text; with more, 400.")
    ] = 5_000,
    max_body_bytes: Annotated[
        int, typer.Option(min=1, help="Of a request; with more, 413.")
    ] = 1 << 20,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds for an answer; then 504.")
    ] = 60,
):
    """Serve an export: a page to try it out, and TF-Serving's REST interface.

    The newest version is served until Ctrl-C or SIGTERM, which let it finish what it
    has begun. There is no authentication: 127.0.0.1 can be reached from this machine
    only.

    \b
    keras-transformer serve saved_models/mine
    curl -d '{"instances": ["A man rides a bike."]}' \\
      http://127.0.0.1:8501/v1/models/mine:predict
    """
    existing(model)
    missing = [each for each in _NEEDED if importlib.util.find_spec(each) is None]
    if missing:
        raise UserError(
            f'no {missing[0]} here; pip install "keras-transformer-seq2seq[serve]"'
        )
    most = min(256, queue_size) if max_texts is None else max_texts
    if most > queue_size:
        raise UserError(
            f"--max-texts {most}: must not exceed --queue-size, which is {queue_size}"
        )
    from keras_transformer import serving

    # A port that is taken is told before the model is loaded.
    serving.listen(host, port).close()
    load_tensorflow()
    with quiet_libraries():
        served = serving.ServedModel(model, name)
    limits = serving.Limits(
        max_batch_size=max_batch_size,
        max_wait=max_wait_ms / 1000,
        queue_size=queue_size,
        max_texts=most,
        max_text_length=max_text_length,
        max_body_bytes=max_body_bytes,
        request_timeout=timeout,
    )
    serving.serve(
        served,
        host,
        port,
        limits,
        lambda url: say(f"{served.name}, version {served.version}, at {url}"),
    )
    say("stopped")
