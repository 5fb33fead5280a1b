"""`Pairs`, the base class of sources of text pairs, and its defaults for lists."""

import itertools

import numpy as np

from keras_transformer.pipelines import Pairs
from keras_transformer.pipelines import as_pairs

# `None` stands for a text that cannot be read.
PAIRS = [("ein", "one"), ("zwei", None)]


def test_as_pairs_wraps_a_list_with_the_defaults():
    pairs = as_pairs(PAIRS)
    for _ in range(2):
        assert list(pairs) == PAIRS
    assert list(pairs.sentences()) == list(itertools.chain(*PAIRS))
    assert pairs.locate(2) == "pair 2"
    assert pairs.fingerprint() is None
    assert pairs.weights(np.array([1, 2])) is None
    assert list(pairs.symbols()) == []
    assert pairs.tokenizer() is None
    assert pairs.id_chunks(None) is None


def test_as_pairs_returns_a_source_unchanged():
    class Places(Pairs):
        def locate(self, number):
            return f"place {number}"

    places = Places()
    assert as_pairs(places) is places
    assert as_pairs(places).locate(7) == "place 7"
