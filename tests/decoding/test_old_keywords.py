"""Keyword arguments and methods of version 0.1."""

import pytest
from characters import Characters
from characters import characters_model

from keras_transformer.decoding import BeamSearch
from keras_transformer.decoding import Sampling
from keras_transformer.decoding import Translator

LINES = ["abc", "", "gfedcba"]


def test_translator_accepts_old_arguments_with_a_warning():
    model = characters_model()
    search = BeamSearch(beam_size=3, extra_length=4)
    translator = Translator(model, Characters(), search=search)
    with pytest.warns(DeprecationWarning) as caught:
        old = Translator(
            *(model, Characters()), beam_size=3, extra_length=4, parallel_batches=2
        )
    assert [str(each.message) for each in caught] == [
        "`parallel_batches=` is deprecated. Use `parallel_parts=`.",
        "`beam_size=` is deprecated. Use `search=BeamSearch(beam_size=...)`.",
        "`extra_length=` is deprecated. Use `search=BeamSearch(extra_length=...)`.",
    ]
    assert {each.filename for each in caught} == {__file__}
    assert (old.search, old.parallel_parts) == (search, 2)
    expected = translator.sample(LINES, Sampling(3, seed=1, extra_length=4))
    with pytest.warns(DeprecationWarning) as caught:
        assert translator.sample(LINES, num_samples=3, seed=1) == expected
    assert {each.filename for each in caught} == {__file__}
    assert any("num_samples" in str(each.message) for each in caught)
    with pytest.warns(DeprecationWarning, match="Use `n_best`") as caught:
        assert translator.translate_n_best(LINES, 2) == translator.n_best(LINES, 2)
    assert {each.filename for each in caught} == {__file__}


def test_translator_rejects_unknown_arguments():
    with pytest.raises(TypeError, match="'beams'"):
        Translator(characters_model(), Characters(), beams=3)
