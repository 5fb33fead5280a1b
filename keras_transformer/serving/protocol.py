"""TF-Serving's REST format: conversion between JSON and columns of values.

https://www.tensorflow.org/tfx/serving/api_rest
"""

import base64
import binascii
import json
import math
from typing import NamedTuple

from keras_transformer.serving.limits import invalid

DEFAULT_SIGNATURE = "serving_default"
_KEYS = {"signature_name", "instances", "inputs"}


class Request(NamedTuple):
    """A parsed request."""

    signature: str
    columns: dict  # maps each input's name to a list with one value per row
    by_row: bool  # whether the response has "predictions" instead of "outputs"


def parse_request(body, signatures, limits):
    """Returns the `Request` in a body, bytes of JSON, or raises a `RequestError`.

    `signatures` maps each signature's name to its inputs, a mapping of names to
    `"string"` for a text per row, or `"int32"` for a list of ids per row.
    """
    fields = _parse_object(body)
    name = fields.get("signature_name", DEFAULT_SIGNATURE)
    if not isinstance(name, str):
        # TF-Serving's texts.
        raise invalid("'signature_name' key must be a string value.")
    name = name or DEFAULT_SIGNATURE
    if name not in signatures:
        raise invalid(
            f"Serving signature name: {_quote(name)} not found in signature def"
        )
    unknown = sorted(set(fields) - _KEYS)
    if unknown:
        raise invalid(f"Unknown key in request: {_quote(unknown[0])}")
    if ("instances" in fields) == ("inputs" in fields):
        raise invalid("A request must have either 'instances' or 'inputs'")
    by_row = "instances" in fields
    columns = (_columns_of_instances if by_row else _columns_of_inputs)(
        fields, signatures[name]
    )
    _check_columns(columns, signatures[name], limits)
    return Request(name, columns, by_row)


def format_response(outputs, by_row):
    """Returns the body of a response, as bytes.

    `outputs` maps names to numpy arrays with the rows as leading axis.
    """
    columns = {name: _to_json_value(array) for name, array in outputs.items()}
    content = columns if len(columns) > 1 else next(iter(columns.values()))
    if by_row and len(columns) > 1:
        rows = zip(*columns.values(), strict=True)
        content = [dict(zip(columns, row, strict=True)) for row in rows]
    # Other threads run between the parts, unlike in `json.dumps`.
    encoder = json.JSONEncoder(ensure_ascii=False)
    parts = encoder.iterencode({"predictions" if by_row else "outputs": content})
    return "".join(parts).encode()


def error_body(message):
    """Returns the body of an error response, as bytes."""
    # Names in a request may contain lone surrogates, which UTF-8 cannot encode.
    return json.dumps({"error": message}, ensure_ascii=False).encode("utf-8", "replace")


def _quote(name):
    """Returns a client's text as a short JSON string on one line."""
    shown = json.dumps(name[:80])
    return shown if len(shown) <= 100 else f'{shown[:97]}..."'


def _parse_object(body):
    if not body.strip():
        raise invalid("JSON Parse error: The document is empty")
    try:
        fields = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise invalid("JSON Parse error: not UTF-8") from None
    except json.JSONDecodeError as error:
        raise invalid(f"JSON Parse error: {error.msg} at offset: {error.pos}") from None
    except RecursionError:
        raise invalid("JSON Parse error: nested too deeply") from None
    except ValueError:
        # NaN, infinity, or too many digits.
        raise invalid("JSON Parse error: invalid number") from None
    if not isinstance(fields, dict):
        raise invalid("JSON Parse error: the request must be an object")
    return fields


def _refuse_constant(name):
    raise ValueError(name)


def _columns_of_instances(fields, inputs):
    instances = fields["instances"]
    if not isinstance(instances, list) or not instances:
        raise invalid("'instances' must be a non-empty list")
    named = [isinstance(each, dict) and not _is_bytes(each) for each in instances]
    if not any(named):
        if len(inputs) > 1:
            raise invalid(
                f"Each instance must be an object with the keys: {', '.join(inputs)}"
            )
        return {next(iter(inputs)): instances}
    if not all(named):
        raise invalid("Instances must be either all objects or all plain values")
    for each in instances:
        _check_names(each, inputs)
    return {name: [each[name] for each in instances] for name in inputs}


def _columns_of_inputs(fields, inputs):
    columns = fields["inputs"]
    if not isinstance(columns, dict) or _is_bytes(columns):
        if len(inputs) > 1:
            keys = ", ".join(inputs)
            raise invalid(f"'inputs' must be an object with the keys: {keys}")
        columns = {next(iter(inputs)): columns}
    _check_names(columns, inputs)
    for name in inputs:
        if not isinstance(columns[name], list) or not columns[name]:
            raise invalid(f"Input {name} must be a non-empty list")
    if len({len(columns[name]) for name in inputs}) > 1:
        raise invalid("Inputs must have the same number of rows")
    return {name: columns[name] for name in inputs}


def _check_names(found, inputs):
    missing = [name for name in inputs if name not in found]
    if missing:
        raise invalid(f"Missing named input: {missing[0]}")
    unknown = sorted(set(found) - set(inputs))
    if unknown:
        raise invalid(f"Unknown named input: {_quote(unknown[0])}")


def _check_columns(columns, inputs, limits):
    num_rows = len(next(iter(columns.values())))
    if num_rows > limits.max_texts:
        raise invalid(
            f"A request must have at most {limits.max_texts} rows. Received: {num_rows}"
        )
    for name, values in columns.items():
        if inputs[name] == "string":
            columns[name] = [_encode_text(name, value, limits) for value in values]
        else:
            _check_ids(name, values, limits)


def _encode_text(name, value, limits):
    """Returns a text as UTF-8."""
    if isinstance(value, str):
        try:
            value = value.encode("utf-8")
        except UnicodeEncodeError:
            raise invalid(
                f"A text of input {name} has an unpaired surrogate, which UTF-8 cannot "
                "encode"
            ) from None
    elif _is_bytes(value):
        try:
            # Of the standard or the URL-safe alphabet, with or without padding.
            text = value["b64"].translate({ord("-"): "+", ord("_"): "/"}).rstrip("=")
            value = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except (binascii.Error, ValueError, AttributeError):
            raise invalid(f"'b64' of input {name} must be base64") from None
    else:
        raise invalid(
            f"Each row of input {name} must be a string. Received: {_describe(value)}"
        )
    # An invalid or incomplete sequence of bytes counts as one character.
    length = len(value.decode("utf-8", "replace"))
    if length > limits.max_text_length:
        raise invalid(
            f"A text must have at most {limits.max_text_length:,} characters. "
            f"Received: {length:,}"
        )
    return value


def _check_ids(name, rows, limits):
    for row in rows:
        if not isinstance(row, list) or len(row) != len(rows[0]):
            raise invalid(f"The rows of input {name} must be lists of equal length")
        for value in row:
            if type(value) is not int or not -(2**31) <= value < 2**31:
                raise invalid(
                    f"Input {name} must contain 32-bit integers. Received: "
                    f"{_describe(value)}"
                )
    if not rows[0]:
        raise invalid(f"Input {name} must have at least one column")
    if len(rows) * len(rows[0]) > limits.max_ids:
        raise invalid(f"Input {name} must have at most {limits.max_ids:,} ids")


def _is_bytes(value):
    """Returns whether a value is TF-Serving's JSON for bytes."""
    return isinstance(value, dict) and list(value) == ["b64"]


def _describe(value):
    """Returns a number, boolean or null as short JSON, and the type of other values."""
    if value is None or isinstance(value, int | float):
        shown = json.dumps(value)
        return shown if len(shown) <= 40 else f"{shown[:37]}..."
    names = {str: "a string", list: "a list"}
    return names.get(type(value), "an object")


def _to_json_value(value):
    """Converts an array, list or scalar to values that JSON can represent.

    Infinite numbers and NaN become `None`.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list):
        return [_to_json_value(each) for each in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
