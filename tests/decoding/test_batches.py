"""Texts that a Translator refuses."""

import pytest
from characters import Characters
from characters import characters_model

from keras_transformer.decoding import Translator


@pytest.fixture(scope="module")
def translator():
    return Translator(characters_model(), Characters())


@pytest.mark.parametrize("bad", ["abc", b"abc", ["a", None], ["a", b"b"], [3]])
def test_check_texts_rejects_anything_but_lists_of_str(translator, bad):
    calls = [
        translator.translate,
        translator.n_best,
        translator.sample,
        lambda lines: translator.n_best(["a", "b"], prefixes=lines),
        lambda lines: translator.score(lines, ["a", "b"]),
        lambda lines: translator.align(["a", "b"], lines),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"must (be a list of texts|contain only)"):
            call(bad)
