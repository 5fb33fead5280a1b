"""keras-transformer info"""

import json

import typer

from keras_transformer.cli import console, options
from keras_transformer.untrusted import escape_controls


def info(model: options.Model, as_json: options.Json = False):
    """Describe a model: size, training, scores and files.

    \b
    keras-transformer info runs/mine
    keras-transformer info saved_models/mine --json
    """
    model = console.find_model(model)
    from keras_transformer.saving.info import model_info

    # Describing a run that has only checkpoints loads TensorFlow.
    with console.quiet_libraries():
        description = model_info(model)
    if as_json:
        # The JSON is ASCII, because untrusted names could control a terminal.
        typer.echo(json.dumps(description, indent=2))
        return
    description["size"] = _format_size(description.pop("bytes"))
    sizes = description["files"].items()
    description["files"] = {file: _format_size(size) for file, size in sizes}
    description["scores"] = {
        f"{each['name']} ({each['how']})": each["score"]
        for each in description["scores"]
    }
    for line in _lines(description):
        typer.echo(escape_controls(line))


def _lines(values, indent=""):
    """Yields the lines of a nested mapping, without values that are `None` or empty."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            inner = [*_lines(value, f"{indent}  ")]
            if inner:
                yield f"{indent}{name}:"
                yield from inner
        elif value not in (None, {}, []):
            yield f"{indent}{name}: {_format(value)}"


def _format(value):
    if isinstance(value, list):
        return ", ".join(map(_format, value))
    if isinstance(value, float):
        return f"{value:,.6g}"
    return f"{value:,}" if type(value) is int else str(value)


def _format_size(size):
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
