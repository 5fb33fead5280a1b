"""`parse_request`: any request body is parsed or rejected with a one-line error.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import base64
import json

import pytest
from fake_model import FakeModel
from fuzzing import LONG, SHORT, describe_outcomes, fuzz
from hypothesis import strategies as st

from keras_transformer.serving.limits import Limits, RequestError
from keras_transformer.serving.protocol import parse_request

LIMITS = Limits(max_texts=5, max_text_length=200)
INPUTS = FakeModel().inputs
TEXTS = st.lists(st.text(max_size=9), min_size=1, max_size=6)
PAIRS = st.lists(
    st.fixed_dictionaries({"inputs": st.text(), "targets": st.text()}), max_size=3
)
IDS = st.lists(st.lists(st.integers(-9, 999), max_size=3), max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda each: (
        st.lists(each, max_size=4)
        | st.dictionaries(
            st.sampled_from(["inputs", "instances", "signature_name", "b64", "targets"])
            | st.text(max_size=3),
            each,
            max_size=4,
        )
    ),
    max_leaves=12,
)
NAMES = st.sampled_from(["serving_default", "attend", "translate_ids", "", "x"])
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "signature_name": NAMES,
        "inputs": JSON | TEXTS | IDS,
        "instances": JSON | TEXTS | PAIRS | IDS,
    },
)
BODIES = (JSON | REQUESTS).map(lambda each: json.dumps(each).encode()) | st.binary()


def check(body):
    """Parses a body, checks the result, and returns the outcome's name."""
    try:
        found = parse_request(body, INPUTS, LIMITS)
    except RequestError as error:
        assert error.status == 400
        assert error.message and "\n" not in error.message and len(error.message) < 300
        return "refused in one line"
    kinds = INPUTS[found.signature]
    assert set(found.columns) == set(kinds)
    assert len({len(values) for values in found.columns.values()}) == 1
    for name, values in found.columns.items():
        assert 1 <= len(values) <= LIMITS.max_texts
        if kinds[name] == "string":
            assert all(isinstance(value, bytes) for value in values)
    return "requests"


@pytest.mark.fault("F25", "a valid request, or status 400 with one line")
def test_parse_request_accepts_or_rejects_any_body():
    outcomes = fuzz(BODIES, check, SHORT)
    assert outcomes.keys() == {"requests", "refused in one line"}
    assert min(outcomes.values()) > SHORT / 100
    deep, long = b'{"inputs": ' + b"[" * 100_000, b"1" * 100_000
    for body in (deep, b'{"inputs": [' + long + b"]}"):
        assert check(body) == "refused in one line"


@pytest.mark.slow
def test_parse_request_handles_a_hundred_thousand_bodies(record_property):
    outcomes = fuzz(BODIES, check, LONG)
    record_property("happened", describe_outcomes(outcomes))
    assert sum(outcomes.values()) >= LONG
    assert outcomes["requests"] > LONG / 100


BAD = {
    "": "empty",
    "{": "JSON Parse error",
    "[]": "must be an object",
    "null": "must be an object",
    '{"instances": ["a"], "inputs": ["a"]}': "either 'instances' or",
    "{}": "either 'instances' or",
    '{"instances": []}': "non-empty list",
    '{"instances": "a"}': "non-empty list",
    '{"instances": [1]}': "must be a string. Received: 1",
    '{"instances": [null]}': "Received: null",
    '{"instances": [true]}': "Received: true",
    '{"instances": [["a"]]}': "Received: a list",
    '{"instances": [{"inputs": "a"}, "b"]}': "either all objects",
    '{"instances": [{"input": "a"}]}': "Missing named input: inputs",
    '{"instances": [{"inputs": "a", "more": 1}]}': 'Unknown named input: "more"',
    '{"instances": [{"b64": "+/8=+/8="}]}': "must be base64",
    '{"instances": [{"b64": "+/8!"}]}': "must be base64",
    '{"instances": [{"b64": "+"}]}': "must be base64",
    '{"instances": [{"b64": 1}]}': "must be base64",
    '{"instances": ["\\ud800 a"]}': "unpaired surrogate",
    '{"instances": ["a \\udc00\\ud800"]}': "unpaired surrogate",
    '{"inputs": {"inputs": "a"}}': "non-empty list",
    '{"inputs": []}': "non-empty list",
    '{"inputs": ["a"], "model": 1}': 'Unknown key in request: "model"',
    '{"inputs": [NaN]}': "invalid number",
    '{"inputs": [' + "9" * 5000 + "]}": "invalid number",
    '{"inputs": ' + "[" * 200_000 + "}": "nested too deeply",
    '{"signature_name": "none", "inputs": ["a"]}': "none",
    '{"signature_name": 1, "inputs": ["a"]}': "must be a string value",
    '{"signature_name": "a\\nb", "inputs": ["a"]}': r'"a\nb" not found',
    '{"signature_name": "\\ud800", "inputs": ["a"]}': r'"\ud800" not found',
    '{"inputs": ["a"], "\\ud800": 1}': "Unknown key in request",
    '{"signature_name": "' + "\\ud800" * 99 + '"}': '..." not found',
    '{"inputs": ["a"], "' + "\\ud800" * 99 + '": 1}': "Unknown key in request",
    '{"signature_name": "attend", "instances": ["a"]}': "keys: inputs, targets",
    '{"signature_name": "attend", "inputs": ["a"]}': "keys: inputs, targets",
    '{"signature_name": "attend", "inputs": {"inputs": ["a"], "targets": []}}': (
        "non-empty list"
    ),
    '{"signature_name": "attend", "inputs": {"inputs": ["a"], "targets": ["b", ""]}}': (
        "same number of rows"
    ),
    '{"signature_name": "translate_ids", "instances": [[1, 2], [3]]}': "equal length",
    '{"signature_name": "translate_ids", "instances": [[1.5]]}': "Received: 1.5",
    '{"signature_name": "translate_ids", "instances": [[9999999999]]}': "Received: 999",
    '{"signature_name": "translate_ids", "inputs": [[' + "9" * 99 + "]]}": "99...",
    '{"signature_name": "translate_ids", "instances": [[true]]}': "32-bit",
    '{"signature_name": "translate_ids", "instances": [[]]}': "at least one column",
    '{"signature_name": "translate_ids", "instances": [3]}': "lists of equal length",
    json.dumps({"inputs": ["a"] * 6}): "at most 5 rows. Received: 6",
    json.dumps({"inputs": ["a" * 201]}): "at most 200 characters. Received: 201",
}


@pytest.mark.fault("F25", "status 400 with one line")
@pytest.mark.parametrize("body", BAD)
def test_parse_request_explains_bad_requests(body):
    with pytest.raises(RequestError) as error:
        parse_request(body.encode(), INPUTS, LIMITS)
    assert BAD[body] in error.value.message
    assert error.value.status == 400 and len(error.value.message) < 200


@pytest.mark.parametrize("text", ["猫" * 200, "é" * 200])
def test_text_limit_counts_characters_in_both_spellings(text):
    content = text.encode()
    encoded = {"b64": base64.b64encode(content).decode()}
    for value in (text, encoded):
        body = json.dumps({"inputs": [value]}).encode()
        (found,) = parse_request(body, INPUTS, LIMITS).columns.values()
        assert found == [content]
    longer = base64.b64encode(content + b"a").decode()
    for value in (text + "a", {"b64": longer}):
        with pytest.raises(RequestError, match=r"200 characters. Received: 201"):
            parse_request(json.dumps({"inputs": [value]}).encode(), INPUTS, LIMITS)


@pytest.mark.parametrize("text", ["+/8=", "-_8=", "+/8", "-_8"])
def test_base64_may_be_url_safe_and_unpadded(text):
    body = json.dumps({"inputs": [{"b64": text}]}).encode()
    (found,) = parse_request(body, INPUTS, LIMITS).columns.values()
    assert found == [b"\xfb\xff"]


def test_limits_reject_contradictions():
    with pytest.raises(ValueError, match="must not exceed queue_size"):
        Limits(max_texts=9, queue_size=8)
