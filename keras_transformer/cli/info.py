"""keras-transformer info"""

import json
import pathlib
from typing import Annotated

import typer

from keras_transformer.cli.console import existing
from keras_transformer.cli.console import verb


@verb
def info(
    model: Annotated[
        pathlib.Path,
        typer.Argument(
            metavar="MODEL", help="A run folder, a .keras file or a SavedModel folder."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
):
    """Tell what a model is: parameters, vocabulary, training, scores, files.

    \b
    keras-transformer info runs/mine
    keras-transformer info saved_models/mine --json
    """
    existing(model)
    from keras_transformer.saving.info import model_info

    told = model_info(model)
    if as_json:
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
        return
    for name, value in told.items():
        if name == "files":
            value = {file: _readable(size) for file, size in value.items()}
        elif name == "bytes":
            name, value = "size", _readable(value)
        if not isinstance(value, dict):
            typer.echo(f"{name}: {_shown(value)}")
            continue
        typer.echo(f"{name}:")
        for key, item in value.items():
            typer.echo(f"  {key}: {_shown(item)}")


def _shown(value):
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _readable(size):
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
