"""keras-transformer info"""

import json

import typer

from keras_transformer.cli import console
from keras_transformer.cli import options


@console.command
def info(model: options.Model, as_json: options.Json = False):
    """Describe a model: size, vocabulary, training, scores and files.

    \b
    keras-transformer info runs/mine
    keras-transformer info saved_models/mine --json
    """
    console.require_exists(model)
    from keras_transformer.saving.info import model_info

    description = model_info(model)
    if as_json:
        typer.echo(json.dumps(description, indent=2, ensure_ascii=False))
        return
    for name, value in description.items():
        if name == "files":
            value = {file: _format_size(size) for file, size in value.items()}
        elif name == "bytes":
            name, value = "size", _format_size(value)
        if not isinstance(value, dict):
            typer.echo(f"{name}: {_format(value)}")
            continue
        typer.echo(f"{name}:")
        for key, item in value.items():
            typer.echo(f"  {key}: {_format(item)}")


def _format(value):
    if isinstance(value, dict):
        return ", ".join(f"{name} {_format(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_format, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _format_size(size):
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
