"""`CoreOpsBytePairTokenizer` matches the sentencepiece library.

It uses core TensorFlow operations only, for servers without tensorflow-text.
"""

import pytest
import sentencepiece
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2
from tokenizer_kinds import NASTY, SENTENCES, decode

from keras_transformer import pipelines
from keras_transformer.errors import DataError
from keras_transformer.pipelines.tokenizers.byte_pairs import BytePairTokenizer
from keras_transformer.pipelines.tokenizers.core_byte_pairs import (
    CoreOpsBytePairTokenizer,
)


def ids_of(tokenizer, texts):
    return tokenizer.tokenize(tf.constant(texts)).to_list()


def library_ids(tokenizer, texts):
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    return processor.encode(list(texts))


TEXTS = [*SENTENCES, *["aaaa abab aab 日本 日本語"] * 9]


@pytest.fixture(scope="module", params=[False, True], ids=["words", "digits"])
def tokenizer(request):
    return pipelines.train_tokenizer("bpe", TEXTS, 420, split_digits=request.param)


@pytest.fixture(scope="module")
def core(tokenizer):
    return CoreOpsBytePairTokenizer(tokenizer)


@pytest.fixture(scope="module")
def core_ids(core):
    """Function from texts to ids that runs as a graph, as in an export."""
    spec = tf.TensorSpec([None], tf.string)
    function = tf.function(core.tokenize, input_signature=[spec])
    return lambda texts: function(tf.constant(texts, tf.string)).to_list()


def test_core_tokenizer_matches_library_on_odd_texts(tokenizer, core_ids):
    texts = [*(text.encode() for text in NASTY), b"\xff", b"\xffab a"]
    assert core_ids(texts) == ids_of(tokenizer, texts)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=4))
def test_core_tokenizer_matches_library_on_random_text(tokenizer, core_ids, texts):
    texts = [*texts, "und am " + "".join(texts)]
    assert core_ids(texts) == ids_of(tokenizer, texts)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.text("ab ", max_size=60))
def test_leftmost_of_equal_merges_comes_first(tokenizer, core_ids, text):
    assert core_ids([text]) == library_ids(tokenizer, [text])


def test_equal_scores_merge_from_the_left():
    tokenizer = pipelines.train_tokenizer("bpe", TEXTS, 420)
    model = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)
    for piece in model.pieces:
        piece.score = 0.0
    tokenizer = BytePairTokenizer(model.SerializeToString())
    core = CoreOpsBytePairTokenizer(tokenizer)
    assert ids_of(core, TEXTS) == library_ids(tokenizer, TEXTS)


def test_core_tokenizer_detokenizes_like_library(tokenizer, core):
    generator = tf.random.Generator.from_seed(3)
    rows = generator.uniform([40, 30], -3, tokenizer.vocabulary_size + 3, tf.int32)
    found = core.detokenize(rows).numpy()
    assert found.tolist() == tokenizer.detokenize(rows).numpy().tolist()
    # The library writes invalid bytes as U+FFFD, and drops spaces at the start.
    pieces = tokenizer.pieces()
    is_byte = [piece.startswith("<0x") for piece in pieces]
    numbers = tf.clip_by_value(rows, 4, tokenizer.vocabulary_size - 1)
    rows = tf.where(tf.gather(is_byte, numbers), tokenizer.unknown_id, numbers).numpy()
    library = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    anchor = pieces.index("<0x41>")
    expected = [
        library.decode([anchor, *row]).removeprefix("A").removeprefix(" ")
        for row in rows.tolist()
    ]
    assert decode(core.detokenize(rows)) == expected


@pytest.mark.parametrize(
    ("piece", "symbols", "reason"),
    [
        ("a\u2581b", [], "has a space after"),
        ("a\u2603", [], "contains '\u2603', which is not"),
        ("ab", ["(NP", "(VP"], r"user-defined symbols such as .*\(NP"),
    ],
)
def test_core_tokenizer_rejects_other_models(piece, symbols, reason):
    texts = ["a b NP (NP VP (VP"] * 50
    tokenizer = pipelines.train_tokenizer("bpe", texts, 272, symbols=symbols)
    model = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)
    model.pieces.add(piece=piece, score=-1000)
    tokenizer = BytePairTokenizer(model.SerializeToString())
    with pytest.raises(DataError, match=f"{reason}.*--tokenizer-ops tensorflow-text"):
        CoreOpsBytePairTokenizer(tokenizer)
