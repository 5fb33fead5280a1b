"""`BytePairTokenizer`: its ids match sentencepiece's, and dropout skips merges."""

import io
from collections import Counter

import numpy as np
import pytest
import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizer_kinds import NASTY, SENTENCES, decode, make

from keras_transformer.errors import DataError
from keras_transformer.pipelines import CoreOpsBytePairTokenizer, train_tokenizer
from keras_transformer.pipelines.tokenizers.bpe_extension import extend_bpe
from keras_transformer.pipelines.tokenizers.byte_pairs import BytePairTokenizer


def train_sentencepiece(**options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=model,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def test_byte_pairs_match_sentencepiece():
    tokenizer = make("bpe")
    library = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    texts = [text for text in NASTY if not {*text} & {"\u2581", "\uf8fe"}] + SENTENCES
    assert tokenizer.tokenize(texts).to_list() == library.encode(texts)


def test_models_of_other_types_are_rejected():
    with pytest.raises(DataError, match="must have byte fallback"):
        BytePairTokenizer(train_sentencepiece(vocab_size=90, model_type="bpe"))
    options = {"byte_fallback": True, "normalization_rule_name": "identity"}
    with pytest.raises(DataError, match=r"Received ids: -1, 0, 1, 2$"):
        BytePairTokenizer(train_sentencepiece(vocab_size=380, **options))
    options |= {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}
    # Unigram models choose the likeliest split and merge nothing.
    tokenizer = BytePairTokenizer(train_sentencepiece(vocab_size=380, **options))
    for use, message in (
        (CoreOpsBytePairTokenizer, "need a SentencePiece model of type BPE"),
        (lambda each: extend_bpe(each, SENTENCES, 5), "of type BPE can be extended"),
        (lambda each: each.sample(["a"], 0.1, 1), r"tokenizer\.bpe_dropout must be 0"),
    ):
        with pytest.raises(DataError, match=message):
            use(tokenizer)


def test_dropout_skips_merges():
    """A text of one letter has one merge, of the added space and the letter."""
    text = "ein Mann ▁ a läuft a\uf8fe und a eine a Frau a"
    tokenizer = train_tokenizer("bpe", [text] * 9, 300)
    assert tokenizer.tokenize(["a"]).row_lengths().numpy() == 1
    for dropout in (0.1, 0.6):
        lengths = tokenizer.sample(["a"] * 3000, dropout, 7).row_lengths().numpy()
        skipped = np.mean(lengths == 2)
        # Four standard deviations of the mean of 3,000 samples.
        assert abs(skipped - dropout) < 4 * (dropout * (1 - dropout) / 3000) ** 0.5
    texts = [text, "", "a  a", "läuft 漢"]
    exact = tokenizer.tokenize(texts)
    assert tokenizer.sample(texts, 0.0, 3).to_list() == exact.to_list()
    sampled = tokenizer.sample(texts, 0.5, 3)
    assert sampled.row_lengths()[0] > exact.row_lengths()[0]
    assert decode(tokenizer.detokenize(sampled)) == texts


def test_dropout_and_extension_do_not_split_symbols():
    symbols = ["(NP", "(NPX", "NN"]
    texts = ["(NP (NPX aaa NN ) (NPXY NNN ab", "(N P) xNN (NPX"]
    tokenizer = train_tokenizer("bpe", texts * 9, 287, symbols=symbols)
    fixed = {tokenizer.pieces().index(f"\u2581{symbol}") for symbol in symbols}
    rows = tokenizer.sample(texts, 0.99, 1).to_list()
    for row, exact in zip(rows, tokenizer.tokenize(texts).to_list(), strict=True):
        assert len(row) > len(exact)
        assert [n for n in row if n in fixed] == [n for n in exact if n in fixed]
    grown = extend_bpe(tokenizer, ["(NP NN (NPX Quark"] * 4, 9).tokenizer
    exact = tokenizer.tokenize(["(NP NN (NPX"]).to_list()
    assert grown.tokenize(["(NP NN (NPX"]).to_list() == exact


@pytest.mark.parametrize("dropout", [0.05, 0.3])
def test_segmentations_are_as_frequent_as_in_sentencepiece(dropout):
    """The frequency of each segmentation agrees, within four standard deviations."""
    tokenizer, count = make("bpe"), 3000
    library = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    for word in ("schnell", "Hunde", "rides"):
        ours = map(tuple, tokenizer.sample([word] * count, dropout, 5).to_list())
        options = {"enable_sampling": True, "alpha": dropout}
        theirs = (tuple(library.encode(word, **options)) for _ in range(count))
        found, expected = Counter(ours), Counter(theirs)
        assert len(found) > 1
        for ids in found | expected:
            mean = (found[ids] + expected[ids]) / 2
            assert abs(found[ids] - expected[ids]) < 5 * (2 * mean) ** 0.5 + 2


PIECES = [*"\u2581abenrst", "en", "er", "st", "\u2581a", "te", "sten", "ste", "\u2581b"]
TEXT = ["aber neben besten", "", "raten  er testen 漢", "a er", "besten testen"]
# Ids that `sample` returned when this test was written. They must never change.
IDS = [
    [271, 262, 263, 265, 260, 264, 263, 262, 268, 275, 263, 273],
    [],
    [
        *(260, 265, 261, 267, 268, 260, 260, 263, 265),
        *(260, 267, 263, 274, 264, 260, 234, 192, 166),
    ],
    [260, 261, 260, 263, 265],
    [275, 263, 266, 267, 268, 260, 272, 270, 263, 264],
]


def test_sample_returns_the_recorded_ids():
    """If the ids changed, a resumed run would train on other data."""
    model = ModelProto.FromString(make("bpe").model)
    del model.pieces[260:]
    for number, piece in enumerate(PIECES, start=260):
        model.pieces.add(piece=piece, score=-number)
    tokenizer = BytePairTokenizer(model.SerializeToString())
    assert tokenizer.sample(TEXT, 0.5, 11).to_list() == IDS


def test_segmentations_depend_on_the_seed_alone():
    """They do not depend on earlier draws."""
    tokenizer, texts = make("bpe"), [*SENTENCES, "aaa" * 20]
    first = tokenizer.sample(texts, 0.3, 7).to_list()
    other = tokenizer.sample(texts, 0.3, 8).to_list()
    assert first != other
    assert tokenizer.sample(texts, 0.3, 7).to_list() == first
