"""`MixedPairs`: several sources of pairs as one."""

import numpy as np
import pytest

from keras_transformer.pipelines import BothDirections, MixedPairs, TextFiles, as_pairs

FILES = {"a": ["one", "two", ""], "b": ["red"]}


@pytest.fixture
def sources(tmp_path):
    """Sources of two files: three pairs, and one pair in both directions."""
    found = []
    for name, lines in FILES.items():
        for side in ("en", "de"):
            text = "".join(f"{side} {line}\n" if line else "\n" for line in lines)
            (tmp_path / f"{name}.{side}").write_text(text)
        found.append(TextFiles(tmp_path / f"{name}.en", tmp_path / f"{name}.de"))
    return [found[0], BothDirections(found[1])]


def test_mixture_puts_tags_in_front_of_sources(sources):
    mixed = MixedPairs(sources, tags=[None, ">>x<<"])
    texts = [("en one", "de one"), ("en two", "de two"), ("", "")]
    tagged = [(">>x<< en red", "de red"), (">>x<< de red", "en red")]
    assert list(mixed) == [*texts, *tagged]
    plain = [*texts, ("en red", "de red"), ("de red", "en red")]
    assert list(mixed.untagged) == plain
    assert list(mixed.sentences()) == [text for pair in plain for text in pair]
    assert mixed.symbols() == [">>x<<"]
    # Blank and unreadable sources get no tag, so that they are dropped.
    blank = [(None, "a"), (" ", "b")]
    assert list(MixedPairs([as_pairs(blank)], tags=["<BT>"])) == blank


def test_mixture_knows_the_source_of_each_pair(sources):
    numbers = np.arange(1, 6)
    mixed = MixedPairs(sources, [0.5, 2.0])
    assert mixed.weights(numbers).tolist() == [0.5, 0.5, 0.5, 2.0, 2.0]
    assert MixedPairs(sources, [1.0, 1.0]).weights(numbers) is None
    assert mixed.parts(numbers).tolist() == [0, 0, 0, 1, 1]
    located = [mixed.locate(number).rpartition("/")[2] for number in numbers]
    assert located == ["a.en:1", "a.en:2", "a.en:3", "b.en:1", "b.de:1"]


def test_fingerprint_of_a_mixture_changes_with_text_and_tags(sources):
    found = {
        MixedPairs(each, tags=tags).fingerprint()
        for each in (sources, sources[::-1])
        for tags in (None, ["x", None], [None, "x"], ["x", "y"])
    }
    assert len(found) == 8
    assert MixedPairs([*sources, as_pairs([])]).fingerprint() is None
