"""`read_yaml` against the types of YAML 1.2, and `dump_yaml` against `read_yaml`."""

import math

import pytest
import yaml

from keras_transformer.recipes.yaml_values import dump_yaml, read_yaml


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("0", 0), ("-3", -3), ("+4", 4), ("12", 12), ("1_000", 1000)),
        *((".5", 0.5), ("1.", 1.0), ("1.5e+3", 1500.0), ("-.5E3", -500.0)),
        *(("1e-9", 1e-9), ("1E5", 1e5), (".inf", math.inf), ("-.INF", -math.inf)),
        *(("true", True), ("False", False), ("null", None), ("~", None)),
    ],
)
def test_words_are_read_as_in_yaml_1_2(text, expected):
    found = read_yaml(text)
    assert found == expected and type(found) is type(expected)


# YAML 1.1 reads some of these as booleans, or as numbers of base 2, 8, 16 or 60.
STRINGS = ["no", "on", "yes", "010", "00", "-07", "0b1", "0x1f", "1:30", "1:30.5", "."]


@pytest.mark.parametrize("text", STRINGS)
def test_words_of_yaml_1_1_are_strings(text):
    assert read_yaml(text) == text


@pytest.mark.parametrize(
    "value",
    [*STRINGS, "1e5", "1E-9", "-.5e3", "1.0", "7", "true", "null", "a: b", "é\n", ""],
)
def test_strings_are_read_back_as_strings(value):
    text = dump_yaml({"key": value, "list": [value]})
    assert read_yaml(text) == {"key": value, "list": [value]}
    # Other programs may read YAML 1.1.
    assert yaml.safe_load(text) == {"key": value, "list": [value]}


@pytest.mark.parametrize("value", [0, -5, 10**6, 1.0, 1e-9, 1e20, math.inf, True, None])
def test_other_values_are_read_back_with_their_types(value):
    text = dump_yaml([value])
    for found in (read_yaml(text)[0], yaml.safe_load(text)[0]):
        assert found == value and type(found) is type(value)


def test_nan_is_read_back():
    assert math.isnan(read_yaml(dump_yaml(math.nan)))
