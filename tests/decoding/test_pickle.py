"""Translators and tokenizers can be pickled and copied."""

import copy
import pickle

import pytest
from tiny_export import TEXTS

import keras_transformer as kt
from keras_transformer.pipelines import SeparateTokenizers, train_tokenizer

OPTIONS = {"max_source_length": 9, "forbidden": ("x*",), "parallel_parts": 2}


@pytest.fixture(scope="module")
def translator(tiny_model):
    search = kt.BeamSearch(beam_size=2, extra_length=3)
    return kt.Translator(*tiny_model, search=search, batch_tokens=77, **OPTIONS)


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, None])
def test_translator_can_be_copied(translator, clone):
    translator.translate(TEXTS[:1])  # compiles a function
    translator.path = "model"
    pickled = clone is None
    again = pickle.loads(pickle.dumps(translator)) if pickled else clone(translator)
    names = (*OPTIONS, "search", "batch_tokens", "path", "warn")
    for name in names:
        assert getattr(again, name) == getattr(translator, name)
    if pickled:  # compiling takes seconds
        assert again.translate(TEXTS[:1]) == translator.translate(TEXTS[:1])
    assert again.fingerprint() == translator.fingerprint()
    assert (again.model is translator.model) == (clone is copy.copy)
    assert again.target_tokenizer is again.tokenizer


@pytest.mark.parametrize("kind", ["bpe", "word_piece", "separate"])
def test_tokenizers_can_be_copied(kind):
    texts = ["a b c 12 é", "b a d", "Zwei Hunde."]
    if kind == "separate":
        sides = [train_tokenizer("bpe", texts, size) for size in (281, 285)]
        tokenizer = SeparateTokenizers(*sides)
    else:
        tokenizer = train_tokenizer(kind, texts, 295, split_digits=True)
    for again in (
        pickle.loads(pickle.dumps(tokenizer)),
        copy.copy(tokenizer),
        copy.deepcopy(tokenizer),
    ):
        assert again.fingerprint() == tokenizer.fingerprint()
        ids = again.tokenize(["a 12 日"])
        assert ids.to_list() == tokenizer.tokenize(["a 12 日"]).to_list()
        texts = [each.target.detokenize(ids).numpy() for each in (again, tokenizer)]
        assert texts[0] == texts[1]
