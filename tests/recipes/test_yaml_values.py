"""`read_yaml` against the types of YAML 1.2, and `dump_yaml` against `read_yaml`."""

import math

import pytest
import yaml

from keras_transformer.errors import RecipeError
from keras_transformer.recipes.yaml_values import dump_yaml, read_yaml


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("0", 0), ("-3", -3), ("+4", 4), ("12", 12), ("1_000", 1000)),
        *((".5", 0.5), ("1.", 1.0), ("1.5e+3", 1500.0), ("-.5E+3", -500.0)),
        *(("1e-9", 1e-9), ("1E5", 1e5), (".inf", math.inf), ("-.INF", -math.inf)),
        *(("010", 10), ("-07", -7), ("0x1f", 31)),
        *(("true", True), ("False", False), ("null", None), ("~", None)),
        ("{<<: {a: 3, b: 7}, a: 2}", {"a": 2, "b": 7}),
    ],
)
def test_values_are_read_as_in_yaml_1_2(text, expected):
    found = read_yaml(text)
    assert found == expected and type(found) is type(expected)


# YAML 1.1 reads some of these as booleans, or as numbers of base 60.
STRINGS = ["no", "on", "yes", "1:30", "1:30.5", "."]


@pytest.mark.parametrize("text", STRINGS)
def test_words_of_yaml_1_1_are_strings(text):
    assert read_yaml(text) == text


@pytest.mark.parametrize(
    "value",
    [
        *(*STRINGS, "010", "0b1", "1e5", "1E-9", "-.5e3", "1.0", "7", "true", "null"),
        *("a: b", "é\n", "", 0, -5, 10**6, 1.0, 1e-9, 1e20, math.inf, True, None),
    ],
)
def test_values_are_read_back_with_their_types(value):
    text = dump_yaml({"key": value, "list": [value]})
    # Other programs may read YAML 1.1.
    for found in (read_yaml(text), yaml.safe_load(text)):
        assert found == {"key": value, "list": [value]}
        assert type(found["key"]) is type(value)
    assert math.isnan(read_yaml(dump_yaml(math.nan)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: {c: 2\nd", "3: not valid YAML: "),
        ("a: 1\n\0", "2: not valid YAML: special characters are not allowed"),
        ("a: 1\na: 2", "2: the key a is given twice"),
        ("a: {<<: {b: 1}, c: 2, c: 3}", "1: the key c is given twice"),
        ("a: 1\n3: 4", "2: a key must be a string. Received: 3"),
        ("a: 1\n[b]: 4", "2: a key must be a string"),
        ("\na: 2001-99-99", "2: the value cannot be read"),
        (f"a: {'9' * 30}", "1: the value cannot be read"),
        (f"a: {'9' * 5000}", "1: the value cannot be read"),
        ("a: !!python/name:os.system", "1: not valid YAML: could not determine"),
        ("%YAML 1.9\n--- a", "1: not valid YAML"),
        ("[" * 2_000, "1: nested too deeply"),
        ("a: &a [*a]", "1: more than 10,000 values"),
        (f"[{'0, ' * 10_000}]", "1: more than 10,000 values"),
    ],
)
def test_wrong_text_is_reported_with_its_line(text, message):
    with pytest.raises(RecipeError) as caught:
        read_yaml(text)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "value", ["[*{0}, *{0}]", "{{k: *{0}, l: *{0}}}", "{{<<: [*{0}, *{0}]}}"]
)
def test_aliases_may_not_expand_to_billions_of_values(value):
    lines = ["a0: &a0 {k: 1}"]
    lines += [f"a{n + 1}: &a{n + 1} {value.format(f'a{n}')}" for n in range(40)]
    with pytest.raises(RecipeError, match="more than 10,000 values"):
        read_yaml("\n".join(lines))
    assert read_yaml("a: &a {k: 1}\nb: &b [*a, *a]")["b"] == [{"k": 1}] * 2
