"""TF-Serving's REST format: JSON to the columns of a signature's inputs, and back.

https://www.tensorflow.org/tfx/serving/api_rest
"""

import base64
import binascii
import json
import math
from typing import NamedTuple

from keras_transformer.serving.errors import invalid

DEFAULT_SIGNATURE = "serving_default"
_KEYS = {"signature_name", "instances", "inputs"}


class Input(NamedTuple):
    """What a signature takes."""

    dtype: str  # "string" or "int32"
    rank: int  # 1: a value for each row; 2: a list for each row


class Request(NamedTuple):
    """A parsed request."""

    signature: str
    columns: dict  # input: list with a value for each row
    by_row: bool  # whether "instances" were given, so that "predictions" come back


def parse_request(body, signatures, limits):
    """Checks a request's body against the signatures and the limits.

    Args:
        body: bytes.
        signatures: Mapping of each signature's name to its inputs, name to `Input`.
        limits: `Limits`.

    Returns:
        `Request`.

    Raises:
        RequestError: 400, saying what is wrong.
    """
    fields = _object(body)
    name = fields.get("signature_name", DEFAULT_SIGNATURE)
    if not isinstance(name, str):
        raise invalid("'signature_name' key must be a string value.")
    name = name or DEFAULT_SIGNATURE
    if name not in signatures:
        raise invalid(
            f"Serving signature name: {_quoted(name)} not found in signature def"
        )
    unknown = sorted(set(fields) - _KEYS)
    if unknown:
        raise invalid(f"Unknown key in request: {_quoted(unknown[0])}")
    if ("instances" in fields) == ("inputs" in fields):
        raise invalid("Give either 'instances' or 'inputs'")
    by_row = "instances" in fields
    columns = (_of_instances if by_row else _of_inputs)(fields, signatures[name])
    _check(columns, signatures[name], limits)
    return Request(name, columns, by_row)


def format_response(outputs, by_row):
    """The body of an answer.

    Args:
        outputs: Mapping of names to numpy arrays with the rows as leading axis.
        by_row: Whether the request had "instances".

    Returns:
        bytes.
    """
    lists = {name: _plain(array) for name, array in outputs.items()}
    names = [*lists]
    if not by_row:
        whole = lists if len(lists) > 1 else lists[names[0]]
        answer = {"outputs": whole}
    elif len(lists) == 1:
        answer = {"predictions": lists[names[0]]}
    else:
        rows = zip(*lists.values(), strict=True)
        answer = {"predictions": [dict(zip(names, row, strict=True)) for row in rows]}
    return json.dumps(answer, ensure_ascii=False).encode()


def error_body(message):
    # A lone surrogate, which a client may have sent, has no UTF-8.
    return json.dumps({"error": message}, ensure_ascii=False).encode("utf-8", "replace")


def _quoted(name):
    """A client's word for a message: on one line and short, whatever it holds."""
    shown = json.dumps(name[:80])
    return shown if len(shown) <= 100 else f'{shown[:97]}..."'


def _object(body):
    if not body.strip():
        raise invalid("JSON Parse error: The document is empty")
    try:
        fields = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise invalid("JSON Parse error: not UTF-8") from None
    except json.JSONDecodeError as error:
        raise invalid(f"JSON Parse error: {error.msg} at offset: {error.pos}") from None
    except RecursionError:
        raise invalid("JSON Parse error: nested too deep") from None
    except ValueError:
        # NaN, infinity, or more digits than Python reads.
        raise invalid("JSON Parse error: a number that cannot be read") from None
    if not isinstance(fields, dict):
        raise invalid("JSON Parse error: the request must be an object")
    return fields


def _no_constant(name):
    raise ValueError(name)


def _of_instances(fields, inputs):
    instances = fields["instances"]
    if not isinstance(instances, list) or not instances:
        raise invalid("'instances' must be a list that is not empty")
    named = [isinstance(each, dict) and not _is_bytes(each) for each in instances]
    if not any(named):
        if len(inputs) > 1:
            raise invalid(f"Each instance must name its inputs: {_names(inputs)}")
        return {next(iter(inputs)): instances}
    if not all(named):
        raise invalid("Instances must be all objects or all plain values")
    for each in instances:
        _check_names(each, inputs)
    return {name: [each[name] for each in instances] for name in inputs}


def _of_inputs(fields, inputs):
    columns = fields["inputs"]
    if not isinstance(columns, dict) or _is_bytes(columns):
        if len(inputs) > 1:
            raise invalid(f"'inputs' must name its inputs: {_names(inputs)}")
        columns = {next(iter(inputs)): columns}
    _check_names(columns, inputs)
    for name in inputs:
        if not isinstance(columns[name], list) or not columns[name]:
            raise invalid(f"Input {name} must be a list that is not empty")
    if len({len(columns[name]) for name in inputs}) > 1:
        raise invalid("Inputs must have the same number of rows")
    return {name: columns[name] for name in inputs}


def _check_names(found, inputs):
    missing = [name for name in inputs if name not in found]
    if missing:
        raise invalid(f"Missing named input: {missing[0]}")
    unknown = sorted(set(found) - set(inputs))
    if unknown:
        raise invalid(f"Unknown named input: {_quoted(unknown[0])}")


def _check(columns, inputs, limits):
    num_rows = len(next(iter(columns.values())))
    if num_rows > limits.max_texts:
        raise invalid(
            f"A request may have {limits.max_texts} rows at most. Received: {num_rows}"
        )
    for name, values in columns.items():
        if inputs[name].dtype == "string":
            columns[name] = [_text(name, value, limits) for value in values]
        else:
            _check_ids(name, values, inputs[name], limits)


def _text(name, value, limits):
    """A text as UTF-8; a lone surrogate becomes a question mark."""
    if isinstance(value, str):
        length, value = len(value), value.encode("utf-8", "replace")
    elif _is_bytes(value):
        try:
            value = base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, ValueError, TypeError):
            raise invalid(f"Input {name}: 'b64' is not base64") from None
        length = len(value)
    else:
        raise invalid(f"Input {name} must be a string. Received: {_kind(value)}")
    if length > limits.max_text_length:
        raise invalid(
            f"A text may have {limits.max_text_length:,} characters at most. "
            f"Received: {length:,}"
        )
    return value


def _check_ids(name, rows, kind, limits):
    if kind.rank != 2:
        raise invalid(f"Input {name} cannot be given as JSON here")
    for row in rows:
        if not isinstance(row, list) or len(row) != len(rows[0]):
            raise invalid(f"Input {name} must be lists of one length")
        for value in row:
            if type(value) is not int or not -(2**31) <= value < 2**31:
                raise invalid(
                    f"Input {name} must be 32-bit integers. Received: {_kind(value)}"
                )
    if not rows[0]:
        raise invalid(f"Input {name} must have at least one column")
    if len(rows) * len(rows[0]) > limits.max_ids:
        raise invalid(f"Input {name} may have {limits.max_ids:,} ids at most")


def _is_bytes(value):
    """TF-Serving's way to write bytes that are not UTF-8."""
    return isinstance(value, dict) and list(value) == ["b64"]


def _kind(value):
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    names = {str: "a string", int: "a number", float: "a number", list: "a list"}
    return names.get(type(value), "an object")


def _names(inputs):
    return ", ".join(inputs)


def _plain(array):
    """Nested lists that JSON can hold."""
    return _decoded(array.tolist())


def _decoded(value):
    if isinstance(value, list):
        return [_decoded(each) for each in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
