"""`BothDirections`, a corpus of each pair and its swap."""

import gzip

import numpy as np
import pytest

from keras_transformer.pipelines import BothDirections, TextFiles, as_pairs

# `None` stands for a text that cannot be read.
PAIRS = [("one", "eins"), ("two", None)]


def test_both_directions_yields_each_pair_and_its_swap():
    pairs = BothDirections(as_pairs(PAIRS))
    assert list(pairs) == [
        *(("one", "eins"), ("eins", "one")),
        *(("two", None), (None, "two")),
    ]


@pytest.fixture
def files(tmp_path):
    for name, text in (("a.en", b"one\ntwo\n"), ("a.de.gz", b"eins\nzwei\n")):
        data = gzip.compress(text) if name.endswith("gz") else text
        (tmp_path / name).write_bytes(data)
    return TextFiles(str(tmp_path / "a.en"), str(tmp_path / "a.de.gz"))


def test_both_directions_names_the_line_of_either_direction(files):
    pairs = BothDirections(files)
    assert pairs.locate(1) == pairs.locate(2) == files.locate(1)
    assert pairs.locate(3) == pairs.locate(4) == files.locate(2)


def test_both_directions_changes_the_fingerprint(files):
    assert BothDirections(files).fingerprint() not in (None, files.fingerprint())
    assert BothDirections(as_pairs(PAIRS)).fingerprint() is None


def test_both_directions_has_the_same_weights_and_vocabulary():
    class Weighted(type(as_pairs(PAIRS))):
        def weights(self, numbers):
            return np.array([0.5, 2.0])[numbers - 1]

    pairs = BothDirections(Weighted(PAIRS))
    np.testing.assert_array_equal(
        pairs.weights(np.array([1, 2, 3, 4])), [0.5, 0.5, 2.0, 2.0]
    )
    assert list(pairs.sentences()) == ["one", "eins", "two", None]
