"""Keyword arguments and methods of version 0.1."""

import numpy as np
import pytest
from characters import Characters
from characters import characters_model

from keras_transformer.decoding import BeamSearch
from keras_transformer.decoding import Sampling
from keras_transformer.decoding import Translator
from keras_transformer.decoding.compiled import parallel_map
from keras_transformer.evaluation.pair_filter import PairFilter

LINES = ["abc", "", "gfedcba"]

DEPRECATED = "is deprecated and will be removed in the next release. Use"


def test_translator_accepts_old_arguments_with_a_warning():
    model = characters_model()
    search = BeamSearch(beam_size=3, extra_length=4)
    translator = Translator(model, Characters(), search=search)
    with pytest.warns(DeprecationWarning) as caught:
        old = Translator(
            *(model, Characters()), beam_size=3, extra_length=4, parallel_batches=2
        )
    assert [str(each.message) for each in caught] == [
        f"`parallel_batches=` {DEPRECATED} `parallel_parts=`.",
        f"`beam_size=` {DEPRECATED} `search=BeamSearch(beam_size=...)`.",
        f"`extra_length=` {DEPRECATED} `search=BeamSearch(extra_length=...)`.",
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


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("translate", {"first_line": 7}),
        ("translate_n_best", {"n_best": 2, "first_line": 7}),
        ("sample", {"num_samples": 2, "seed": 1, "first_line": 7}),
        ("align", {"targets": ["a", "b"], "line_numbers": [7, 7]}),
    ],
)
def test_warnings_use_old_line_numbers(method, arguments):
    found = []
    translator = Translator(
        *(characters_model(), Characters()),
        max_source_length=4,
        warn=lambda *warning: found.append(warning),
    )
    lines = ["abc", "abcdefg"]
    old = set(arguments) & {"first_line", "line_numbers"}
    with pytest.warns(DeprecationWarning) as caught:
        getattr(translator, method)(lines, **arguments)
    assert {each.filename for each in caught} == {__file__}
    assert f"`{old.pop()}=` {DEPRECATED} `Translator(warn=...)`." in {
        str(each.message) for each in caught
    }
    ((number, _),) = found
    assert number == 6 if method == "align" else number == 7
    translator.translate(lines)
    assert found[1][0] == 1  # the translator itself is unchanged


def test_align_accepts_the_old_default_of_line_numbers():
    translator = Translator(characters_model(), Characters())
    expected = translator.align(["abc"], ["ab"])
    with pytest.warns(DeprecationWarning, match="`line_numbers=` is deprecated"):
        assert translator.align(["abc"], ["ab"], line_numbers=None) == expected


def test_functions_accept_renamed_arguments():
    with pytest.warns(DeprecationWarning, match="`at_once=`.* Use `num_threads=`"):
        pairs = parallel_map(np.sqrt, [4, 9], at_once=2)
    assert sorted(pairs) == [(4, 2), (9, 3)]
    with pytest.warns(DeprecationWarning) as caught:
        pair_filter = PairFilter(model=1, copies=True)
    assert [str(each.message) for each in caught] == [
        f"`model=` {DEPRECATED} `translator=`.",
        f"`copies=` {DEPRECATED} `keep_identical=`.",
    ]
    assert {each.filename for each in caught} == {__file__}
    assert (pair_filter.translator, pair_filter.keep_identical) == (1, True)


def test_settings_of_another_type_are_rejected():
    expected = r"`search` must be a `BeamSearch`\. Received: search=4\. Pass search="
    with pytest.raises(TypeError, match=expected):
        Translator(characters_model(), Characters(), None, 4)
    translator = Translator(characters_model(), Characters())
    expected = r"`sampling` must be a `Sampling`\. Received: sampling=2\. Pass sampl"
    with pytest.raises(TypeError, match=expected):
        translator.sample(LINES, 2)


def test_unknown_arguments_are_rejected():
    with pytest.raises(TypeError, match="'beams'"):
        Translator(characters_model(), Characters(), beams=3)
    with pytest.raises(TypeError, match="'threads'"):
        parallel_map(np.sqrt, [4, 9], 1, threads=2)
