"""`Pairs`, its defaults for lists, and `BothDirections`."""

import itertools

import numpy as np

from keras_transformer.pipelines import (
    BothDirections,
    MixedPairs,
    TextFiles,
    as_pairs,
)

# `None` stands for a text that cannot be read.
PAIRS = [("ein", "one"), ("zwei", None)]


def test_as_pairs_wraps_a_list_with_the_defaults():
    pairs = as_pairs(PAIRS)
    assert as_pairs(pairs) is pairs
    for _ in range(2):
        assert list(pairs) == PAIRS
    assert list(pairs.sentences()) == list(itertools.chain(*PAIRS))
    assert pairs.locate(2) == "pair 2"
    assert pairs.fingerprint() is None
    assert pairs.weights(np.array([1, 2])) is None
    assert list(pairs.symbols()) == []
    assert pairs.tokenizer() is None
    assert pairs.id_chunks(None) is None


def test_both_directions_yields_each_pair_and_its_swap():
    pairs = BothDirections(as_pairs(PAIRS))
    assert list(pairs) == [
        *(("ein", "one"), ("one", "ein")),
        *(("zwei", None), (None, "zwei")),
    ]


def test_both_directions_delegates_to_the_pairs(tmp_path):
    for name, text in (("a.en", "one\ntwo\n"), ("a.de", "eins\nzwei\n")):
        (tmp_path / name).write_text(text)
    files = TextFiles(tmp_path / "a.en", tmp_path / "a.de")
    pairs = BothDirections(files)
    for number, name in (1, "en"), (2, "de"), (3, "en"), (4, "de"):
        other = "de" if name == "en" else "en"
        line = (number + 1) // 2
        assert pairs.locate(number) == f"{tmp_path}/a.{name}:{line}"
        assert pairs.locate(number, is_target=True) == f"{tmp_path}/a.{other}:{line}"
    assert pairs.fingerprint() not in (None, files.fingerprint())
    assert BothDirections(as_pairs(PAIRS)).fingerprint() is None


def test_both_directions_of_a_mixture_has_its_ends():
    """Ends that are known are not counted, so no text is read."""
    assert BothDirections(as_pairs(PAIRS)).ends is None
    assert BothDirections(MixedPairs([PAIRS, PAIRS[:1]])).ends == [4, 6]
    pairs = BothDirections(MixedPairs([PAIRS, PAIRS], weights=[1, 0.5]))
    pairs.ends = [2, 8]
    weights = pairs.weights(np.arange(1, 9))
    assert weights.tolist() == [1, 1] + [0.5] * 6


def test_both_directions_has_the_same_weights_and_vocabulary():
    class Weighted(type(as_pairs(PAIRS))):
        def weights(self, numbers):
            return np.array([0.5, 2.0])[numbers - 1]

    pairs = BothDirections(Weighted(PAIRS))
    np.testing.assert_array_equal(
        pairs.weights(np.array([1, 2, 3, 4])), [0.5, 0.5, 2.0, 2.0]
    )
    assert list(pairs.sentences()) == ["ein", "one", "zwei", None]
