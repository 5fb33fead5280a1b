"""The adapter for KerasHub's tokenizers matches KerasHub's results."""

import io

import numpy as np
import prepared
import pytest
import sentencepiece
import tensorflow as tf

from keras_transformer import Transformer, Translator, pipelines
from keras_transformer.errors import DataError
from keras_transformer.pipelines import encode_corpus, training_dataset
from keras_transformer.pipelines.tokenizers.kerashub import KerasHubTokenizer

TEXTS = ["the quick brown fox", "ein Hund läuft schnell.", "hello world 42"]
ODD = [
    "",
    "  two  spaces ",
    "hé 猫 \u2581 😀",
    "\n\t",
    "<|endoftext|>x",
    "[SEP]",
    "the",
]
MERGES = ["h e", "l l", "he ll", "Ġ w", "t he"]


def sentencepiece_tokenizer(**options):
    import keras_hub

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 20),
        model_writer=model,
        vocab_size=320,
        model_type="bpe",
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    proto = model.getvalue()
    return keras_hub.tokenizers.SentencePieceTokenizer(proto=proto, **options)


def byte_pair_tokenizer():
    import keras_hub
    from tokenizers.pre_tokenizers import ByteLevel

    pieces = sorted(ByteLevel.alphabet()) + ["".join(each.split()) for each in MERGES]
    end = "<|endoftext|>"
    return keras_hub.tokenizers.BytePairTokenizer(
        vocabulary={piece: number for number, piece in enumerate([*pieces, end])},
        merges=MERGES,
        unsplittable_tokens=[end],
    )


def word_piece_tokenizer():
    import keras_hub

    letters = "abcdefghijklmnopqrstuvwxyzäé0123456789."
    return keras_hub.tokenizers.WordPieceTokenizer(
        [
            *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "quick", "##ck"),
            *(*letters, *(f"##{letter}" for letter in letters)),
        ],
        lowercase=True,
    )


# Functions that make a tokenizer, and its ids for padding, unknown, start and end.
MAKERS = {
    "sentencepiece": (sentencepiece_tokenizer, (None, 0, 1, 2)),
    "byte pairs": (byte_pair_tokenizer, (None, None, 261, 261)),
    "word pieces": (word_piece_tokenizer, (0, 1, 2, 3)),
}


@pytest.fixture(scope="module", params=MAKERS)
def pair(request):
    """KerasHub's tokenizer, its special ids, and the adapter of the tokenizer."""
    make, special_ids = MAKERS[request.param]
    hub = make()
    return hub, special_ids, KerasHubTokenizer(hub, *special_ids)


def renumber(hub, special_ids):
    """Returns {KerasHub's id: our id}. Ids 0 to 3 are special, the others follow."""
    ordinary = [i for i in range(hub.vocabulary_size()) if i not in special_ids]
    numbers = {each: 4 + place for place, each in enumerate(ordinary)}
    return numbers | {each: i for i, each in enumerate(special_ids) if each is not None}


def test_adapter_renumbers_kerashub_ids(pair):
    hub, special_ids, tokenizer = pair
    numbers = renumber(hub, special_ids)
    assert tokenizer.vocabulary_size == max(numbers.values()) + 1
    texts = TEXTS + ODD
    expected = [[numbers[each] for each in row] for row in hub.tokenize(texts)]
    # Special tokens that are spelled out in a text are removed.
    expected = [[each for each in row if each not in (0, 2, 3)] for row in expected]
    ids = tokenizer.tokenize(texts)
    assert ids.dtype == tf.int32
    assert ids.to_list() == expected
    graph = tf.function(tokenizer.tokenize)(tf.constant(texts))
    assert graph.to_list() == expected
    pieces = tokenizer.pieces()
    assert len(pieces) == tokenizer.vocabulary_size
    assert [[pieces[each] for each in row] for row in expected[:3]] == [
        [hub.id_to_token(each) for each in row] for row in hub.tokenize(TEXTS)
    ]


def test_adapter_detokenizes_like_kerashub(pair):
    hub, _, tokenizer = pair
    texts = [*TEXTS, "", "hé 42."]
    expected = hub.detokenize(hub.tokenize(texts))
    ids = tokenizer.tokenize(texts)
    assert [each.decode() for each in tokenizer.detokenize(ids).numpy()] == expected
    # Ids after the end id are skipped.
    rows = [[2, *row, 3, 9, 9, 0] for row in ids.to_list()]
    texts = tf.function(tokenizer.detokenize)(tf.ragged.constant(rows, tf.int32))
    assert [each.decode() for each in texts.numpy()] == expected


def test_detokenize_accepts_any_ids(pair):
    tokenizer = pair[2]
    generator = np.random.default_rng(3)
    rows = generator.integers(-9, tokenizer.vocabulary_size + 9, (50, 13))
    for ids in (rows.astype("int32"), rows[:0].astype("int32"), [[]], [[0, 3]]):
        ids = tf.constant(ids, tf.int32)
        texts = tokenizer.detokenize(ids)
        assert texts.shape == ids.shape[:1]
        graph = tf.function(tokenizer.detokenize)(ids)
        assert graph.shape == ids.shape[:1]
        for text in (*texts.numpy(), *graph.numpy()):
            text.decode()


def test_adapter_accepts_invalid_utf8_and_no_texts(pair):
    tokenizer = pair[2]
    assert tokenizer.tokenize([]).to_list() == []
    replaced = tokenizer.tokenize(["the \ufffd fox"]).to_list()
    assert tokenizer.tokenize([b"the \xff fox"]).to_list() == replaced


def test_adapter_works_after_seeding(pair):
    tokenizer = pair[2]
    ids = tokenizer.tokenize(TEXTS)
    texts = tokenizer.detokenize(ids).numpy().tolist()
    # Seeding TensorFlow deletes the resources of eager operations.
    tf.random.set_seed(7)
    assert tokenizer.tokenize(TEXTS).to_list() == ids.to_list()
    assert tokenizer.detokenize(ids).numpy().tolist() == texts


def test_piece_bytes_spell_kerashub_text(pair):
    hub, _, tokenizer = pair
    written = tokenizer.piece_bytes()
    assert written[:4] == [b""] * 4
    for text in [*TEXTS, "hé 42."]:
        (ids,) = tokenizer.tokenize([text]).to_list()
        spelled = b"".join(written[each] for each in ids).decode()
        assert spelled.strip() == hub.detokenize(hub.tokenize([text]))[0]


def test_fingerprint_depends_on_vocabulary_and_special_ids():
    first, again = (KerasHubTokenizer(byte_pair_tokenizer()) for _ in range(2))
    assert first.fingerprint() == again.fingerprint()
    others = [
        KerasHubTokenizer(byte_pair_tokenizer(), end_id=261),
        KerasHubTokenizer(word_piece_tokenizer()),
        KerasHubTokenizer(sentencepiece_tokenizer()),
    ]
    assert len({each.fingerprint() for each in (first, *others)}) == 4


def test_adapter_rejects_unsupported_tokenizers(tmp_path):
    import keras_hub

    with pytest.raises(ValueError, match="sequence_length=9"):
        KerasHubTokenizer(sentencepiece_tokenizer(sequence_length=9))
    with pytest.raises(ValueError, match="dtype=string"):
        KerasHubTokenizer(sentencepiece_tokenizer(dtype="string"))
    with pytest.raises(ValueError, match=r"\[999\]"):
        KerasHubTokenizer(word_piece_tokenizer(), end_id=999)
    tokenizer = KerasHubTokenizer(word_piece_tokenizer())
    with pytest.raises(DataError, match="save_to_preset"):
        tokenizer.save(tmp_path)
    with pytest.raises(DataError, match=r"requires `tokenizer\.kind: bpe`"):
        tokenizer.sample(["the"], 0.1, 1)
    tokenizer = KerasHubTokenizer(keras_hub.tokenizers.ByteTokenizer())
    assert tokenizer.detokenize(tokenizer.tokenize(["hé"]))[0] == "hé".encode()
    with pytest.raises(DataError, match="Received: ByteTokenizer"):
        tokenizer.piece_bytes()


# The tests above cover every kind, so two of the kinds run only as slow tests here.
@pytest.mark.parametrize(
    "pair",
    [
        "byte pairs",
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in ("sentencepiece", "word pieces")
        ),
    ],
    indirect=True,
)
def test_transformer_trains_and_translates_with_adapter(pair, tmp_path):
    tokenizer = pair[2]
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    corpus = encode_corpus(pairs, tokenizer, tokenizer, tmp_path / "ids")
    model = Transformer(
        tokenizer.vocabulary_size, num_layers=1, d_model=8, d_ff=8, num_heads=2
    )
    # Eager mode is enough: the compiled step does not depend on the tokenizer.
    model.compile("adam", "sparse_categorical_crossentropy", run_eagerly=True)
    dataset = training_dataset(corpus, batch_tokens=200)
    (inputs, labels) = next(iter(dataset))
    assert inputs["target_ids"][:, 0].numpy().tolist() == [2] * len(pairs)
    ends = tf.reduce_sum(tf.cast(labels == 3, tf.int32), 1)
    assert ends.numpy().tolist() == [1] * len(pairs)
    history = model.fit(dataset, steps_per_epoch=1, shuffle=False, verbose=0).history
    assert np.isfinite(history["loss"][0])
    translations = Translator(model, tokenizer).translate(TEXTS)
    assert [type(each) for each in translations] == [str] * len(TEXTS)


def test_adapter_imports_kerashub_only_when_needed(tmp_path):
    code = (
        "import keras_transformer.pipelines.tokenizers.kerashub, sys; "
        "print({'keras_hub', 'keras_nlp'} & set(sys.modules))"
    )
    result = prepared.run(code, folder=tmp_path)
    assert result.stdout.strip() == "set()", result.stderr


def test_adapter_is_a_public_name():
    assert pipelines.KerasHubTokenizer is KerasHubTokenizer
    assert "KerasHubTokenizer" in pipelines.__all__
