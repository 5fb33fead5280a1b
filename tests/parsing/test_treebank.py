"""`TreeFiles`: expected sources and targets, weights, and training on trees.

A source is the words of a sentence, and a target the symbols of its linearized tree.
"""

import functools
import gzip
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from tree_samples import random_tree

from keras_transformer.errors import DataError
from keras_transformer.parsing import TreeFiles
from keras_transformer.parsing.linearization import NUMBERS, word_marks
from keras_transformer.pipelines import (
    EncodedCorpus,
    encode_corpus,
    steps_per_epoch,
    train_tokenizer,
    training_dataset,
)
from keras_transformer.pipelines.batching import (
    batches_per_epoch,
    epoch_order,
    plan_buckets,
)
from keras_transformer.pipelines.datasets import batch_indices, epoch_rows


@pytest.fixture
def folder(tmp_path):
    """Folder with three trees in `wsj/` and 40 random ones in `silver.gz`."""
    gold = tmp_path / "wsj"
    (gold / "b").mkdir(parents=True)
    (gold / ".hidden").write_text("no tree")
    (gold / "b" / "2.mrg").write_text("( (S\n  (NN c)\n (NN d)))\n\n( (NP (NN e)))")
    (gold / "1.mrg").write_text("(S (NN a) (NP (NN b)))")
    silver = [str(random_tree(seed, 5)) for seed in range(40)]
    text = "\n".join(silver).encode()
    (tmp_path / "silver.gz").write_bytes(gzip.compress(text))
    return tmp_path


def test_tree_files_yield_words_and_symbols(folder):
    source = TreeFiles(folder / "wsj")
    assert list(source) == [
        ("a b", "(S (NN) (NP (NN) )NP )S"),
        ("c d", "(S (NN) (NN) )S"),
        ("e", "(NP (NN) )NP"),
    ]
    assert source.symbols() == ["(NN)", "(NP", "(S", ")NP", ")S"]
    assert source.locate(1) == f"{folder / 'wsj' / '1.mrg'}:1"
    assert source.locate(3) == f"{folder / 'wsj' / 'b' / '2.mrg'}:5"
    with pytest.raises(IndexError):
        source.locate(4)
    numbered = TreeFiles(folder / "wsj", linearization="numbers")
    # The first number is zlib.crc32(b"a b") % 128.
    assert next(iter(numbered)) == ("(83) a (84) b", "(S (83) (NP (84) )NP )S")
    assert {"(0)", "(127)", "(NP"} <= set(numbered.symbols())
    # 128 numbers, and the opening and closing brackets of S and NP.
    assert len(numbered.symbols()) == 128 + 4
    assert list(numbered.sentences()) == ["a b", "c d", "e"]
    bare = TreeFiles(folder / "wsj", linearization="XX")
    assert next(iter(bare)) == ("a b", "(S (XX) (NP (XX) )NP )S")
    assert bare.symbols() == ["(NP", "(S", "(XX)", ")NP", ")S"]


def test_numeric_tag_names_file_and_line(tmp_path):
    path = tmp_path / "trees"
    path.write_text("(S (NN a) (NN b))\n\n(S (NN c) (1 d))")
    with pytest.raises(DataError, match=f"{path}:3: the tag '1' of 'd' is a number"):
        list(TreeFiles(path))
    assert len(list(TreeFiles(path, linearization="numbers"))) == 2


def test_tree_files_use_all_numbers_equally(tmp_path):
    """Each number is the first one of about equally many sentences."""
    path = tmp_path / "trees"
    trees = [random_tree(seed, num_words=8) for seed in range(3000)]
    path.write_text("\n".join(map(str, trees)), encoding="utf-8")
    first = np.zeros(NUMBERS, int)
    for source, target in TreeFiles(path, linearization="numbers"):
        pieces = [source.split()[::2], [s for s in target.split() if s[1:2].isdigit()]]
        assert pieces[0] == pieces[1]
        numbers = [int(piece[1:-1]) for piece in pieces[0]]
        assert set(np.diff(numbers) % NUMBERS) == {1}
        first[numbers[0]] += 1
    # Each of 128 numbers starts about 23 of the 3,000 sentences. The bounds are more
    # than 4 standard deviations away.
    assert first.min() > 3 and first.max() < 45


def test_weights_and_fingerprint_depend_on_the_arguments(folder):
    paths = [folder / "silver.gz", folder / "wsj"]
    assert TreeFiles(paths).weights(np.array([1, 2])) is None
    weighted = TreeFiles(paths, [0.25, 2])
    assert weighted.weights(np.array([1, 40, 41, 43])).tolist() == [0.25, 0.25, 2, 2]
    others = [
        TreeFiles(paths[::-1]),
        TreeFiles(paths, linearization="XX"),
        TreeFiles(paths[0]),
    ]
    prints = [each.fingerprint() for each in (TreeFiles(paths), weighted, *others)]
    assert len(set(prints)) == 5
    assert TreeFiles(paths).fingerprint() == prints[0]


def test_tree_files_reject_invalid_arguments(folder):
    (folder / "empty").mkdir()
    (folder / "blank").write_text("\n")
    for arguments, message in (
        (([folder], [1, 2]), "2 weights, 1 paths"),
        (([folder], [0]), "must be finite and above 0"),
        (([folder], [float("nan")]), "must be finite and above 0"),
        ((folder / "empty",), "empty: must contain at least one file"),
    ):
        with pytest.raises(DataError, match=message):
            TreeFiles(*arguments)
    with pytest.raises(DataError, match="blank: must contain at least one tree"):
        list(TreeFiles(folder / "blank"))
    with pytest.raises(DataError, match="none: no such file"):
        list(TreeFiles(folder / "none"))


def test_tokenizer_keeps_each_symbol_whole(folder):
    source = TreeFiles(folder / "silver.gz")
    texts = [words for words, _ in source] + ["the gene Apc NN NP S"] * 9
    tokenizer = train_tokenizer("bpe", texts, 312, symbols=source.symbols())
    targets = [target for _, target in source]
    ids = tokenizer.tokenize(targets)
    assert ids.row_lengths().numpy().tolist() == [len(t.split()) for t in targets]
    back = [text.decode() for text in tokenizer.detokenize(ids).numpy()]
    assert back == targets
    pieces = tokenizer.pieces()
    assert {"▁" + symbol for symbol in source.symbols()} <= set(pieces)
    # Words that look like a tag or label are not symbols.
    words = tokenizer.tokenize(["NN NP S -LRB- gene"])
    symbols = {pieces.index("▁" + symbol) for symbol in source.symbols()}
    assert not symbols & set(words.flat_values.numpy().tolist())
    assert tokenizer.detokenize(words).numpy()[0].decode() == "NN NP S -LRB- gene"
    with pytest.raises(DataError, match=r"require `tokenizer\.kind: bpe`\. Received"):
        train_tokenizer("word_piece", texts, 400, symbols=["(S"])


@pytest.mark.parametrize("linearization", ["joined", "tags", "numbers", "XX"])
def test_word_marks_match_the_words(tmp_path, linearization):
    """Source and target ids both have one mark per word, even for unusual words."""
    trees = [random_tree(seed, 9) for seed in range(30)]
    odd = "(S (NN 😀) (NP (NN \u2581x) (NN -LRB-) (NN naïve–β)) (CD 4/8) (NN \uf8fe0))"
    path = tmp_path / "trees"
    path.write_text("\n".join([*map(str, trees), odd]), encoding="utf-8")
    source = TreeFiles(path, linearization=linearization)
    size = {"joined": 625, "numbers": 450}.get(linearization, 330)
    tokenizer = train_tokenizer(
        "bpe", source.sentences(), size, symbols=source.symbols()
    )
    marks = [
        np.array(each) for each in word_marks(tokenizer.piece_bytes(), linearization)
    ]
    expected = [len(tree.words) for tree in source.trees()]
    sampled = functools.partial(tokenizer.sample, dropout=0.5, seed=3)
    lengths = set()
    for split in (tokenizer.tokenize, sampled):
        sides = [split(list(texts)) for texts in zip(*source, strict=True)]
        counts = [
            [each[ids].sum() for ids in rows.to_list()]
            for each, rows in zip(marks, sides, strict=True)
        ]
        assert counts == [expected, expected]
        lengths.add(int(tf.size(sides[0].flat_values)))
    assert len(lengths) == 2  # BPE-dropout gives more ids.
    assert expected[-1] == 6


def test_epoch_samples_pairs_by_weight():
    draw = np.random.default_rng(4)
    source, target = draw.integers(5, 60, (2, 900))
    weights = np.repeat([1.0, 0.3, 2.5], [300, 400, 200])
    buckets, leaves = plan_buckets(source, target, 500, weights=weights)
    counts = []
    for epoch in range(30):
        order, of_position = epoch_order(buckets, leaves, 7, epoch, weights)
        again, _ = epoch_order(buckets, leaves, 7, epoch, weights)
        np.testing.assert_array_equal(order, again)
        seen = np.bincount(order, minlength=900)
        assert (seen[:300] == 1).all()
        assert set(seen[300:700]) == {0, 1}
        assert set(seen[700:]) == {2, 3}
        counts.append(seen)
        # Every epoch has the same number of batches. At most one of them is not full.
        sizes = np.bincount(of_position, minlength=len(buckets))
        batches = sum(
            -(-size // bucket.batch_size)
            for size, bucket in zip(sizes, buckets, strict=True)
        )
        assert batches == batches_per_epoch(buckets)
    mean = np.mean(counts, axis=0)
    # Pairs of similar length form one of at most 32 leaves of the bucket tree. In each
    # leaf, the number of samples is rounded up.
    assert 0.3 <= mean[300:700].mean() <= 0.3 + 32 / 400
    assert 2.5 <= mean[700:].mean() <= 2.5 + 32 / 200
    assert (mean[300:700] > 0).mean() > 0.99
    assert not np.array_equal(counts[0], counts[1])


def test_training_resumes_with_sampled_weights(folder, tmp_path):
    source = TreeFiles([folder / "wsj", folder / "silver.gz"], [3, 0.5])
    texts = [words for words, _ in source]
    tokenizer = train_tokenizer("bpe", texts, 300, symbols=source.symbols())
    encode_corpus(source, tokenizer, tokenizer, tmp_path / "ids", 300)
    corpus = EncodedCorpus.load(tmp_path / "ids", source.weights)
    longest = max(corpus.source_lengths.max(), corpus.target_lengths.max())
    budget = 6 * int(longest)
    steps = steps_per_epoch(corpus, budget)
    batches = list(training_dataset(corpus, budget, seed=2).take(2 * steps))
    for epoch in (0, 1):
        rows = np.concatenate(
            [
                batch_indices(corpus, budget, 2, epoch * steps + step)
                for step in range(1, steps + 1)
            ]
        )
        counts = Counter(rows.tolist())
        assert [counts[row] for row in range(3)] == [3, 3, 3]
        assert {counts[row] for row in range(3, 43)} == {0, 1}
    resumed = training_dataset(corpus, budget, seed=2, start_step=steps + 2)
    for batch, other in zip(resumed.take(3), batches[steps + 2 :], strict=False):
        np.testing.assert_array_equal(batch[1], other[1])
    # Each of 3 pairs three times, and half of 40 pairs, with rounding.
    assert 9 + 20 <= len(epoch_rows(corpus)) <= 9 + 21
