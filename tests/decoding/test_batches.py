"""Arguments that a `Translator` refuses in place of a list of texts."""

import pytest
from characters import Characters
from characters import characters_model

from keras_transformer.decoding import Translator


@pytest.fixture(scope="module")
def translator():
    return Translator(characters_model(), Characters())


def test_translator_rejects_lists_of_different_lengths(translator):
    message = "`sources` and `targets` must have .* Received: 2 sources and 1 targets"
    for call in (translator.score, translator.align):
        with pytest.raises(ValueError, match=message):
            call(["a", "b"], ["a"])
    message = "`lines` and `prefixes` must have .* Received: 1 lines and 2 prefixes"
    with pytest.raises(ValueError, match=message):
        translator.n_best(["a"], prefixes=["a", "b"])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            "abc",
            r"a list of str. Received: a single str. Pass \[text\] instead",
        ),
        (b"abc", r"must be a list of str. Received: a single bytes"),
        (None, r"must be a list of str. Received: None"),
        (3, r"must be a list of str. Received: 3"),
        (["a", None], r"must contain only str. Received: \w+\[1\]=None"),
        (["a", b"b"], r"must contain only str. Received: \w+\[1\]=b'b'. Decode it"),
        ([3], r"must contain only str. Received: \w+\[0\]=3"),
    ],
)
def test_translator_rejects_anything_but_lists_of_str(translator, bad, message):
    calls = [
        translator.translate,
        translator.n_best,
        translator.sample,
        lambda lines: translator.score(lines, ["a", "b"]),
        lambda lines: translator.align(["a", "b"], lines),
        lambda lines: translator.score(["a", "b"], lines),
        lambda lines: translator.with_search(forbidden=lines),
        lambda lines: Translator(characters_model(), Characters(), forbidden=lines),
    ]
    if bad is not None:
        calls.append(lambda lines: translator.n_best(["a", "b"], prefixes=lines))
    # `forbidden` and `prefixes` may be `None`.
    for call in calls if bad is not None else calls[:6]:
        with pytest.raises(ValueError, match=message):
            call(bad)
