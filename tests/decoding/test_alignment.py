"""Word alignments from cross-attention scores with known word pairs."""

import io

import numpy as np
import pytest
import sentencepiece
from keras import ops
from small_transformers import built

from keras_transformer import pipelines
from keras_transformer.decoding import (
    BeamSearch,
    Translator,
    alignment_scores,
    format_pharaoh,
)
from keras_transformer.decoding.alignment import (
    align_words,
    alignable_pairs,
    count_added,
    index_words,
    token_surfaces,
)
from keras_transformer.pipelines.tokenizers.marian import MarianTokenizer

TEXT = ["die dude jagt wolf", "kupfer, mal sehr x", "jagt die kupfer wolf!"] * 3


@pytest.fixture(scope="module", params=["bpe", "word_piece"])
def tokenizer(request):
    size = {"bpe": 300, "word_piece": 310}[request.param]
    return pipelines.train_tokenizer(request.param, TEXT, size)


def marian_tokenizer(language=None):
    """Returns a `MarianTokenizer` that spells rare characters in bytes."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_writer=model,
        model_type="bpe",
        vocab_size=290,
        byte_fallback=True,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    model = model.getvalue()
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(number) for number in range(len(processor))]
    side = ((*pieces, ">>fra<<"), model)
    return MarianTokenizer(side, side, language=language)


@pytest.fixture(scope="module", params=["bpe", "word_piece", "marian"])
def any_tokenizer(request):
    if request.param == "marian":
        return marian_tokenizer()
    return pipelines.train_tokenizer(request.param, TEXT, 310)


def test_words_of_maps_subwords_to_words():
    row = [b"The", b" un", b"known", b".", b" ", b"x", b" \t", b" a b", b"", b" "]
    assert index_words(row) == [0, 1, 1, 1, 2, 2, 3, 4, 4, -1]
    assert index_words([b" ", b" ", b"a", b" b ", b"c"]) == [0, 0, 0, 1, 2]
    # Only ASCII whitespace separates words. U+00A0 is two bytes here.
    assert index_words([b"a", b"\xc2", b"\xa0", b"b"]) == [0, 0, 0, 0]
    assert index_words([b" ", b"\n"]) == [-1, -1]
    assert index_words([]) == []


@pytest.mark.parametrize(
    "text",
    [
        "die dude",
        "  kupfer  wolf ",
        "jagt\tdie\u00a0kupfer",
        "größte 狼 \U0001f43a, \u2581 \uf8fe x",
        "",
        " ",
    ],
)
def test_token_surfaces_spell_the_text(any_tokenizer, text):
    tokenizer = any_tokenizer
    (ids,) = tokenizer.tokenize([text]).to_list()
    if tokenizer.kind == "marian":
        # SentencePiece represents a space as U+2581, so this character separates words.
        text = text.replace("\u2581", " ")
    ((row,), words) = token_surfaces(tokenizer, [ids]), text.encode().split()
    indices = index_words(row)
    assert len(indices) == len(row) == len(ids)
    assert {*indices} - {-1} == {*range(len(words))}
    assert [i for i in indices if i >= 0] == sorted(i for i in indices if i >= 0)
    for number, word in enumerate(words):
        own = [each for each, i in zip(ids, indices, strict=True) if i == number]
        (alone,) = tokenizer.detokenize(np.array([own], "int32")).numpy()
        assert alone.strip() == word


def test_token_surfaces_keep_a_separate_space():
    """A character without a subword for it and its space follows a separate space."""
    tokenizer = marian_tokenizer()
    (ids,) = tokenizer.tokenize(["die 狼 x"]).to_list()
    pieces = [tokenizer.pieces()[number] for number in ids]
    place = pieces.index("▁")
    assert pieces[place : place + 4] == ["▁", "<0xE7>", "<0x8B>", "<0xBC>"]
    (row,) = token_surfaces(tokenizer, [ids])
    assert row[place : place + 4] == [b" ", b"\xe7", b"\x8b", b"\xbc"]
    assert b"".join(row) == " die 狼 x".encode()
    assert index_words(row)[place - 1 : place + 5] == [0, 1, 1, 1, 1, 2]


def test_align_words_sums_subwords():
    # Rows are target subwords: 0 and 1 are the first word, 2 is a space, and 3 is the
    # second word. Columns are source subwords: 0 is the first word, 1 and 2 are the
    # second, and 3 is a space.
    scores = [
        [0.40, 0.10, 0.15, 0.35],
        [0.20, 0.30, 0.10, 0.40],
        [0.00, 0.00, 1.00, 0.00],
        [0.30, 0.10, 0.19, 0.41],
    ]
    # Sums for the two source words: 0.60 and 0.65 for the first target word, 0.30 and
    # 0.29 for the second.
    pairs = align_words(np.array(scores), [0, 1, 1, -1], [0, 0, -1, 1])
    assert pairs == [(1, 0), (0, 1)]
    assert format_pharaoh(pairs) == "1-0 0-1"


def test_align_words_is_empty_without_words():
    scores = np.ones((2, 3))
    assert align_words(scores, [-1, -1, -1], [0, 0]) == []
    assert align_words(scores, [0, 1, 2], [-1, -1]) == []
    assert align_words(np.ones((0, 0)), [], []) == []
    assert format_pharaoh([]) == ""


def test_pairs_with_an_empty_side_are_not_aligned():
    assert alignable_pairs([[1], [], [1]], [[], [1], [2]], (9, 9), None) == [2]


class CopyingModel:
    """Stand-in for a model that attends to the source token that it predicts.

    Only the last two of its three layers do so. The first layer attends to the first
    source token, with larger scores.
    """

    vocabulary_size = source_vocabulary_size = num_outputs = 999
    position_limit = None
    pad_id = 0

    def decoder_output(self, inputs, training, return_attention_scores):
        source_ids, target_ids = inputs["source_ids"], inputs["target_ids"]
        ends = ops.full_like(target_ids[:, :1], 3)
        predicted = ops.concatenate([target_ids[:, 1:], ends], axis=1)
        found = ops.cast(predicted[:, :, None] == source_ids[:, None], "float32")
        found += 1e-6
        found /= ops.sum(found, axis=-1, keepdims=True)
        start = ops.zeros_like(found) + ops.one_hot(0, ops.shape(source_ids)[1])
        # Two heads attend most to the same token. The second attends to it less.
        heads = ops.stack([found, found / 2 + 0.01], axis=1)
        first = ops.stack([start, start], axis=1) * 5.0
        return None, [(None, scores) for scores in (first, heads, heads)]


def test_alignment_scores_average_the_last_layers():
    source_ids = ops.convert_to_tensor([[7, 8, 3], [8, 3, 0]])
    target_ids = ops.convert_to_tensor([[2, 8, 7, 7], [2, 8, 0, 0]])
    scores = alignment_scores(CopyingModel(), source_ids, target_ids)
    assert scores.shape == (2, 4, 3)
    best = ops.convert_to_numpy(ops.argmax(scores, axis=-1))
    # Attention to the predicted token is 1 in one head and 0.51 in the other.
    np.testing.assert_allclose(scores[0, 0], [0.005, 0.755, 0.005], atol=1e-5)
    # The predicted tokens are 8, 7, 7, and the end id.
    assert best[0].tolist() == [1, 0, 0, 2]
    assert best[1, 0] == 0
    all_layers = alignment_scores(CopyingModel(), source_ids, target_ids, 3)
    assert (ops.convert_to_numpy(ops.argmax(all_layers, axis=-1)) == 0).all()
    with pytest.raises(ValueError, match="num_layers=0"):
        alignment_scores(CopyingModel(), source_ids, target_ids, 0)


PAIRS = [
    ("wolf jagt die kupfer,", "die kupfer, jagt wolf", "2-0 3-1 1-2 0-3"),
    ("wolf", " wolf  wolf ", "0-0 0-1"),
    ("", "", ""),
    ("sehr mal", "", ""),
    ("", "sehr", ""),
    (" \t", "sehr", ""),
    ("mal sehr Ω ß", "ß Ω Ω sehr", "3-0 2-1 2-2 1-3"),
]


@pytest.mark.parametrize("batch_tokens", [1, 4096])
def test_align_handles_reordered_words(tokenizer, batch_tokens):
    translator = Translator(CopyingModel(), tokenizer, batch_tokens=batch_tokens)
    sources, targets, expected = zip(*PAIRS, strict=True)
    found = translator.align(list(sources), list(targets))
    assert [format_pharaoh(pairs) for pairs in found] == list(expected)
    assert translator.align([], []) == []


class PrefixModel(CopyingModel):
    """Like `CopyingModel`, but attends most to the first source token."""

    def __init__(self, pad_id):
        self.pad_id = pad_id

    def decoder_output(self, inputs, **options):
        _, scores = super().decoder_output(inputs, **options)
        first = ops.one_hot(0, ops.shape(inputs["source_ids"])[1])
        return None, [(None, cross + 9 * first) for _, cross in scores]


@pytest.mark.parametrize(
    ("row", "text", "expected"),
    [
        ([b">>fra<<", b"a"], "a", 1),
        ([b"b", b"a"], "ba", 0),  # no prefix was added
        ([b">>fra<<", b"a"], ">>fra<< a", 0),
    ],
)
def test_only_what_a_tokenizer_adds_is_no_word(row, text, expected):
    assert count_added(row, [b">>fra<<"], text) == expected


def test_align_ignores_the_language_prefix():
    tokenizer = marian_tokenizer("fra")
    translator = Translator(PrefixModel(tokenizer.pad_id), tokenizer)
    # Each source has the prefix `>>fra<<`, also the blank ones.
    sources, targets, expected = zip(*PAIRS, strict=True)
    found = translator.align(list(sources), list(targets))
    assert [format_pharaoh(pairs) for pairs in found] == list(expected)
    # A prefix that is part of the text is a word.
    tokenizer = marian_tokenizer()
    translator = Translator(PrefixModel(tokenizer.pad_id), tokenizer)
    assert translator.align([">>fra<< wolf"], ["wolf"]) == [[(0, 0)]]


def test_align_warns_of_pairs_that_are_too_long(tokenizer):
    warnings = []
    translator = Translator(
        CopyingModel(),
        tokenizer,
        search=BeamSearch(extra_length=11),
        max_source_length=30,
        warn=lambda *warning: warnings.append(warning),
    )
    # Subwords do not cross word boundaries, so each x is at least one subword.
    long = ["x" + " x" * 199, "wolf"]
    found = translator.align(
        [long[0], "wolf", "wolf", "wolf"], ["wolf", *long, long[0]]
    )
    assert found == [[], [], [(0, 0)], []]
    assert [index for index, _ in warnings] == [0, 1, 3]
    num_ids = len(tokenizer.tokenize([long[0]]).to_list()[0])
    assert f"Source: {num_ids} subwords, at most 29 are allowed." in warnings[0][1]
    # The limit of the target is 3 x (max_source_length + extra_length) = 123 positions.
    # One is for the end id.
    assert f"Translation: {num_ids}, at most 122." in warnings[1][1]


def test_align_is_independent_of_batch(tokenizer):
    model = built(tokenizer.vocabulary_size, 3, 16, 20, 2, normalization="pre", seed=0)
    for layer in model.decoder.layers:
        # Larger queries, since the heads of a new model attend to all tokens equally.
        kernel = layer.cross_attention.query_dense.kernel
        kernel.assign(kernel * 10)
    sources = [source for source, *_ in PAIRS] + ["d e f h i j k l"]
    targets = [target for _, target, _ in PAIRS] + ["l o k j m e i"]
    translator = Translator(model, tokenizer)
    together = translator.align(sources, targets)
    for source, target, pairs in zip(sources, targets, together, strict=True):
        assert translator.align([source], [target]) == [pairs]
        words = len(source.split()), len(target.split())
        count = words[1] if words[0] else 0
        assert [j for _, j in pairs] == list(range(count))
        assert all(0 <= i < words[0] for i, _ in pairs)
    assert len({i for i, _ in together[-1]}) > 1


def test_align_limits_the_target_to_learned_positions(tokenizer):
    options = {"positions": "learned", "max_length": 9}
    model = built(tokenizer.vocabulary_size, 1, 8, 8, 2, **options)
    warnings = []
    translator = Translator(model, tokenizer, warn=lambda *one: warnings.append(one))
    assert translator.align(["wolf", "wolf"], ["x" + " x" * 20, "die"])[0] == []
    assert len(warnings) == 1
