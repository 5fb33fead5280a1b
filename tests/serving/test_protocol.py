"""`parse_request`: any request body is parsed or rejected with a one-line error.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import base64
import json

import pytest
from fake_model import FakeModel
from fuzzing import LONG, SHORT, describe_outcomes, fuzz
from hypothesis import strategies as st

from keras_transformer.serving.errors import RequestError
from keras_transformer.serving.limits import Limits
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
        if kinds[name].dtype == "string":
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
