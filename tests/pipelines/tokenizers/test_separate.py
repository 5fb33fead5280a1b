"""`SeparateTokenizers`: source and target tokenizers with their own vocabularies."""

import pytest
from tiny_export import SENTENCES

from keras_transformer import pipelines
from keras_transformer.errors import DataError
from keras_transformer.export.saved_model import core_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    english = ["the dog runs", "a dog and another dog", "two dogs and the cat sleeps"]
    return pipelines.SeparateTokenizers(
        pipelines.train_tokenizer("bpe", english, 290),
        pipelines.train_tokenizer("bpe", SENTENCES, 300),
    )


def test_either_tokenizer_changes_the_cache(tmp_path):
    one, two = (
        pipelines.train_tokenizer("word_piece", SENTENCES * 4, size)
        for size in (300, 305)
    )
    texts = "ein Hund", "die Katze"
    pairs = pipelines.as_pairs([texts] * 3)
    # Only pairs with a fingerprint are cached.
    pairs.fingerprint = lambda: "text"
    inputs = []
    for sides in ((one, two), (two, two), (one, one), (two, one)):
        tokenizer = pipelines.SeparateTokenizers(*sides)
        target = tokenizer.target
        corpus = pipelines.encode_corpus(pairs, tokenizer, target, tmp_path / "cache")
        # A hash of the text, tokenizers and options.
        inputs.append(corpus.inputs)
        for ids, side, text in zip(corpus.pair(0), sides, texts, strict=True):
            assert side.detokenize(ids[None]).numpy()[0].decode() == text
    assert len(set(inputs)) == 4
    tokenizer.save(tmp_path)
    loaded = pipelines.load_tokenizer(tmp_path)
    assert loaded.fingerprint() == tokenizer.fingerprint()
    (tmp_path / "target" / "tokenizer.json").write_text("[")
    with pytest.raises(DataError, match=r"target/tokenizer.json: "):
        pipelines.load_tokenizer(tmp_path)


def test_dropout_segments_both_sides(tokenizer, tmp_path):
    texts = ("two dogs and a dog", "ein Hund und noch ein Hund")
    sides = tokenizer, tokenizer.target
    options = {"dropout": 0.4, "segmentations": 6}
    corpus = pipelines.encode_corpus([texts], *sides, tmp_path / "x", **options)
    rows = [corpus.pair(number) for number in range(6)]
    for side, (own, text) in enumerate(zip(sides, texts, strict=True)):
        found = {tuple(row[side]) for row in rows}
        assert len(found) > 1
        for ids in found:
            assert own.detokenize([ids]).numpy()[0].decode() == text


def test_core_operations_give_the_same_ids(tokenizer):
    core = core_tokenizer(tokenizer)
    for ours, theirs in (
        (tokenizer, core),
        (tokenizer.target, core.target),
    ):
        expected = ours.tokenize(["12 Größen", "two"])
        found = theirs.tokenize(["12 Größen", "two"])
        assert found.to_list() == expected.to_list()
        assert theirs.detokenize(found).numpy().tolist()[1] == b"two"


def test_separate_tokenizers_must_have_one_kind(tokenizer):
    other = pipelines.train_tokenizer("word_piece", SENTENCES * 4, 300)
    with pytest.raises(
        DataError, match=r"of the same kind. Received: bpe and word_piece"
    ):
        pipelines.SeparateTokenizers(tokenizer.source, other)
