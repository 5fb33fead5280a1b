"""Word alignments in Pharaoh's format, as groups of subwords in batches."""

import itertools

import numpy as np
import pytest

from keras_transformer.errors import DataError
from keras_transformer.pipelines import (
    BothDirections,
    EncodedCorpus,
    MixedPairs,
    NoisyCorpus,
    TextFiles,
    TrainingBatches,
    as_pairs,
    encode_corpus,
    train_tokenizer,
    training_dataset,
)

# Source, target and links. The last pair is too long.
PAIRS = [
    ("unbelievable old bridges", "alte unglaubliche Brücken", "0-1 1-0 2-2"),
    ("do not go", "gehen nicht", "0-1 1-1 2-0"),
    ("he goes", "er geht", ""),
    ("a " * 60, "b", "0-0"),
]
EXTRA = [("red", "rot")]


def write(folder, links):
    columns = [*zip(*PAIRS, strict=True)][:2]
    for name, lines in zip(("en", "de", "align"), (*columns, links), strict=True):
        text = "".join(f"{line}\n" for line in lines)
        (folder / f"pairs.{name}").write_text(text)
    return TextFiles(*(folder / f"pairs.{name}" for name in ("en", "de", "align")))


@pytest.fixture
def files(tmp_path):
    return write(tmp_path, [links for *_, links in PAIRS])


@pytest.fixture
def tokenizer():
    texts = [text for *pair, _ in PAIRS for text in pair]
    return train_tokenizer("bpe", [*texts, "un glaub lich"], 300, symbols=[">>de<<"])


def aligned_words(tokenizer, ids, groups, labels, numbers):
    """Returns the pairs of words whose subwords share a group."""
    surfaces = tokenizer.piece_bytes()

    def words(row):
        return np.cumsum([surfaces[each].startswith(b" ") for each in row]) - 1

    found = set()
    sides = [
        zip(words(x), y, strict=True) for x, y in ((ids, groups), (labels, numbers))
    ]
    for (s, group), (t, number) in itertools.product(*map(list, sides)):
        if group and group == number:
            found.add((int(s), int(t)))
    return found


def test_groups_are_those_of_the_linked_words(files, tokenizer, tmp_path):
    """The words of a group are linked with each other. Tags shift the sources."""
    mixed = MixedPairs([as_pairs(EXTRA), files], tags=[None, ">>de<<"])
    for pairs, shift, first in ((files, 0, 0), (mixed, 1, 1)):
        corpus = encode_corpus(pairs, tokenizer, tokenizer, tmp_path / "ids", 50)
        rows = np.arange(first, first + 3)
        sources, _, labels, *groups = corpus.padded_batch(rows)
        links = [{(0, 1), (1, 0), (2, 2)}, {(0, 1), (1, 1), (2, 0)}, set()]
        for number, expected in enumerate(links):
            found = aligned_words(
                *(tokenizer, sources[number], groups[0][number]),
                *(labels[number], groups[1][number]),
            )
            assert found == {(s + shift, t) for s, t in expected}
    (extra,) = corpus.padded_batch(np.array([0]))[3]
    assert not extra.any()


def test_both_directions_swaps_links(files):
    found = list(BothDirections(files).alignments())
    assert found[:2] == [[(0, 1), (1, 0), (2, 2)], [(1, 0), (0, 1), (2, 2)]]
    assert as_pairs(EXTRA).alignments() is None
    assert BothDirections(as_pairs(EXTRA)).alignments() is None


def test_pairs_have_groups_if_words_are_kept_apart(tokenizer, tmp_path):
    """A no-break space ends a word of the text, but begins none of the tokenizer."""
    words = " ".join(["go"] * 300)
    links = [f"{s}-{t}" for s in range(299) for t in range(299)]
    lines = [("do go", "geh en", "0-1"), ("do\u00a0go", "geh en", "0-1")]
    lines.append((words, words, " ".join([*links, "299-299"])))
    paths = [tmp_path / name for name in ("en", "de", "align")]
    for path, *column in zip(paths, *lines, strict=True):
        path.write_text("".join(f"{line}\n" for line in column))
    corpus = encode_corpus(TextFiles(*paths), *[tokenizer] * 2, tmp_path / "ids", 999)
    # However many links a line has, its groups are counted from 1.
    for groups in corpus.padded_batch(np.arange(3))[3:]:
        assert groups.max(axis=1).tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("number", "line", "message"),
    [
        (
            2,
            "0-0 3-1",
            "pairs.align:2: 3-1 must be a link of the 3 source and 2 target",
        ),
        (1, "0-3", "pairs.align:1: 0-3 must be a link of the 3 source and 3 target"),
        (3, "0:0", "pairs.align:3: 0:0 must be a link"),
        (3, "-1-0", "pairs.align:3: -1-0 must be a link"),
    ],
)
def test_wrong_link_is_reported_with_its_line(
    tokenizer, tmp_path, number, line, message
):
    links = [line if n == number else "" for n in range(1, 5)]
    with pytest.raises(DataError, match=message):
        encode_corpus(write(tmp_path, links), tokenizer, tokenizer, tmp_path / "ids")
    assert not (tmp_path / "ids").exists()
    with pytest.raises(DataError, match="must have the same number of lines"):
        encode_corpus(write(tmp_path, [""]), tokenizer, tokenizer, tmp_path / "ids")


def test_batches_contain_groups(files, tokenizer, tmp_path):
    encode_corpus(files, tokenizer, tokenizer, tmp_path / "ids", 50)
    plain = EncodedCorpus.load(tmp_path / "ids")
    noisy = NoisyCorpus.load(tmp_path / "ids", None, {"mask": 0.9}, tokenizer)
    for corpus in (plain, noisy):
        batches = [
            TrainingBatches(corpus, 90)[0],
            *training_dataset(corpus, 90).take(2),
        ]
        for inputs, labels in batches:
            assert inputs["source_groups"].shape == inputs["source_ids"].shape
            assert inputs["target_groups"].shape == labels.shape
    # In imported vocabularies, padding has other ids than 0.
    plain.pad_id = 7
    for groups in plain.padded_batch(np.array([0, 2]), multiple=4)[3:]:
        assert groups[0].any() and not groups[1:].any()
    # Noise changes subwords, so copies have no alignments.
    *_, groups, _ = noisy.padded_batch(np.array([0, 3]))
    assert groups[0].any() and not groups[1].any()
