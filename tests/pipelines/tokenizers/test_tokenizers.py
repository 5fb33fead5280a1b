"""BPE and WordPiece tokenizers restore texts exactly. BPE ids match SentencePiece's.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_transformer.errors import DataError
from keras_transformer.pipelines import TextFiles, load_tokenizer, train_tokenizer

KINDS = ["bpe", "word_piece"]
SENTENCES = [
    "Ein Mann fährt Rad.",
    "A man rides a bike, 27 times.",
    "Two dogs run (fast) in the snow!",
    "Zwei Hunde rennen schnell im Schnee.",
    "The man's other dog is 42 years old.",
    "Drei Männer und 13 Hunde: „Hallo“, sagt einer.",
] * 7
NASTY = [
    "",
    " ",
    "   ",
    " a",
    "a ",
    "a  b",
    "\t",
    "a\tb",
    "\n",
    "a\nb",
    "\r\n",
    "\x00",
    "a\x00b",
    "\x7f\x85\u2028\u2029",
    "\u00a0x\u202f\u00ad\u200b",
    "\ufeffx",
    "\ufffd",
    "\ufffe\uffff\U0010ffff",
    # Characters that the tokenizers use as marks.
    "\u2581",
    "a\u2581b",
    "\u2581 \u2581 ",
    "\uf8fe",
    "\uf8fe0\uf8fe1\u2581\uf8fe",
    "\ue000\ue0ff",
    "a\ue041b",
    "##a",
    "a##b ## #",
    "[PAD] [UNK] [START][END]",
    "<s></s><pad><unk> <0x41>",
    "A",
    " A",
    "A b",
    "A\u2581",
    # Composed, decomposed and joined characters.
    "é e\u0301 \u0301",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪",
    "日本語のテキスト",
    "עברית العربية हिन्दी ไทย",
    "٣ ५ ½ ⅷ",
    "x" * 1009,
]


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request):
    return train_tokenizer(request.param, SENTENCES, 380)


@pytest.fixture(scope="module", params=KINDS)
def digit_tokenizer(request):
    return train_tokenizer(request.param, SENTENCES, 380, split_digits=True)


def round_trip(tokenizer, texts):
    ids = tokenizer.tokenize(tf.constant([text.encode() for text in texts], tf.string))
    assert ids.dtype == tf.int32
    assert not set(ids.flat_values.numpy()) & {0, 1, 2, 3}
    return [text.decode() for text in tokenizer.detokenize(ids).numpy()]


def test_tokenizer_has_the_special_ids_0_to_3(tokenizer):
    assert tokenizer.kind in KINDS
    assert tokenizer.vocabulary_size == 380
    ids = (
        tokenizer.pad_id,
        tokenizer.unknown_id,
        tokenizer.start_id,
        tokenizer.end_id,
    )
    assert ids == (0, 1, 2, 3)


@pytest.mark.fault("F17", "the ids decode to the same text")
def test_unusual_texts_round_trip(tokenizer):
    assert round_trip(tokenizer, NASTY) == NASTY
    # The result for a text does not depend on the rest of the batch.
    assert [round_trip(tokenizer, [text])[0] for text in NASTY] == NASTY


ALPHABET = st.one_of(
    st.characters(codec="utf-8"),
    st.sampled_from(list("a Ae09.#\u2581\uf8fe\ue000\ue041\ue0ff\x00\n[]<>")),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(texts=st.lists(st.text(ALPHABET, max_size=40), max_size=20))
@example(texts=[])
@pytest.mark.fault("F17", "the ids decode to the same text")
def test_random_text_round_trips(tokenizer, texts):
    assert round_trip(tokenizer, texts) == texts


def test_split_digits_separates_digits(tokenizer, digit_tokenizer):
    text = " 1234567890 a12b 3"
    assert round_trip(digit_tokenizer, [text]) == [text]
    assert round_trip(digit_tokenizer, NASTY) == NASTY

    def pieces(tokenizer):
        ids = tokenizer.tokenize(["42 times 27 and 13 or 4x2"]).to_list()[0]
        return [tokenizer.detokenize([[id_]]).numpy()[0].decode() for id_ in ids]

    def digits(piece):
        return sum(character.isdigit() for character in piece)

    assert max(map(digits, pieces(digit_tokenizer))) == 1
    assert all(len(piece) == 1 for piece in pieces(digit_tokenizer) if digits(piece))
    assert max(map(digits, pieces(tokenizer))) == 2


def test_graph_matches_eager_mode(tokenizer):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def ids_of(texts):
        ids = tokenizer.tokenize(texts)
        return ids.flat_values, ids.row_splits, tokenizer.detokenize(ids)

    flat, splits, texts = ids_of(tf.constant([text.encode() for text in NASTY]))
    eager = tokenizer.tokenize(tf.constant([text.encode() for text in NASTY]))
    np.testing.assert_array_equal(flat, eager.flat_values)
    np.testing.assert_array_equal(splits, eager.row_splits)
    assert [text.decode() for text in texts.numpy()] == NASTY
    assert [len(tensor) for tensor in ids_of(tf.constant([], tf.string))] == [0, 1, 0]


def test_tokenizer_works_inside_tf_data(tokenizer):
    dataset = tf.data.Dataset.from_tensor_slices(SENTENCES[:5]).batch(3)
    dataset = dataset.map(lambda texts: tokenizer.detokenize(tokenizer.tokenize(texts)))
    texts = [text.decode() for batch in dataset for text in batch.numpy()]
    assert texts == SENTENCES[:5]


def test_tokenizer_works_after_seeding(tokenizer):
    ids = tokenizer.tokenize(["ein Hund"]).to_list()
    # Seeding TensorFlow deletes the resources of eager operations.
    tf.random.set_seed(19)
    assert tokenizer.detokenize(tf.constant(ids)).numpy().tolist() == [b"ein Hund"]
    assert tokenizer.tokenize(["ein Hund"]).to_list() == ids


def test_saved_module_gives_same_results(tokenizer, tmp_path):
    module = tf.Module()
    module.tokenizer = tokenizer
    module.serve = tf.function(
        lambda texts: tokenizer.tokenize(texts).to_tensor(shape=[None, 1013]),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    texts = tf.constant([text.encode() for text in NASTY])
    expected = module.serve(texts)
    tf.saved_model.save(module, str(tmp_path / "saved"))
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    np.testing.assert_array_equal(loaded.serve(texts), expected)


def test_detokenize_stops_at_end_and_skips_special_ids(tokenizer):
    hello, dogs = (ids for ids in tokenizer.tokenize(["Two dogs", " run"]).to_list())
    size = tokenizer.vocabulary_size
    rows = [
        [2, *hello, 3, *dogs],
        [*hello, 0, *dogs, 0, 3, 3, 0],
        [3, *hello],
        [],
        [-1, *hello, size, size + 1_000_000, *dogs, -(2**31), 2**31 - 1],
        [3, 3],
        [0, 0, 2],
    ]
    expected = ["Two dogs", "Two dogs run", "", "", "Two dogs run", "", ""]
    # Each part was encoded with a leading space, so two spaces precede "run".
    expected = [text.replace("dogs run", "dogs  run") for text in expected]
    ragged = tf.ragged.constant(rows, tf.int32)
    assert [text.decode() for text in tokenizer.detokenize(ragged).numpy()] == expected
    for dtype in (tf.int32, tf.int64):
        dense = tf.cast(ragged.to_tensor(), dtype)
        texts = [text.decode() for text in tokenizer.detokenize(dense).numpy()]
        assert texts == expected
    assert tokenizer.detokenize(tf.zeros([0, 0], tf.int32)).shape == [0]
    assert (
        tokenizer.detokenize(tf.zeros([2, 0], tf.int32)).numpy().tolist() == [b""] * 2
    )


@pytest.mark.fault("F22", "skipped; detokenization raises no error")
def test_detokenize_returns_utf8_for_any_ids(tokenizer):
    generator = np.random.default_rng(5)
    ids = generator.integers(-3, tokenizer.vocabulary_size + 3, [500, 23])
    ids[ids == 3] = 7
    for text in tokenizer.detokenize(ids).numpy():
        text.decode()
    # The single ids include 128 bytes that are not valid UTF-8 on their own.
    every = np.arange(tokenizer.vocabulary_size)[:, np.newaxis]
    texts = [text.decode() for text in tokenizer.detokenize(every).numpy()]
    assert [texts[n] for n, piece in enumerate(tokenizer.piece_bytes()) if piece] == [
        piece.decode("utf-8", "ignore").removeprefix(" ")
        for piece in tokenizer.piece_bytes()
        if piece
    ]
    assert "\u2047" in texts[1]  # the text of the unknown id


def test_bytes_that_form_no_character_are_not_written(tokenizer):
    """Python's decoder of UTF-8 finds the same characters in random bytes."""
    spellings = tokenizer.piece_bytes()
    byte_ids = [spellings.index(bytes([each])) for each in range(256)]
    draw = np.random.default_rng(8)
    starts = [b"", b"a", "é".encode(), "猫".encode()[:2], "🐈".encode()[:3], b"\xff"]
    for _ in range(300):
        pieces = [starts[n] for n in draw.integers(len(starts), size=4)]
        text = (
            b"x" + b"".join(pieces) + bytes(draw.integers(0x20, 256, size=3).tolist())
        )
        (found,) = tokenizer.detokenize([[byte_ids[each] for each in text]]).numpy()
        assert found.decode() == text.decode("utf-8", "ignore")
    genuine = tokenizer.tokenize(["a\ufffdb"])
    assert tokenizer.detokenize(genuine).numpy()[0].decode() == "a\ufffdb"


def test_invalid_utf8_becomes_replacement_characters(tokenizer):
    ids = tokenizer.tokenize(tf.constant([b"a\xffb", b"\xe2\x82"]))
    texts = [text.decode() for text in tokenizer.detokenize(ids).numpy()]
    assert texts[0] == "a\ufffdb"
    assert set(texts[1]) == {"\ufffd"}


def test_tokenizer_saves_and_loads(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "new" / "folder")
    loaded = load_tokenizer(tmp_path / "new" / "folder")
    assert type(loaded) is type(tokenizer)
    assert loaded.fingerprint() == tokenizer.fingerprint()
    assert loaded.vocabulary_size == tokenizer.vocabulary_size
    expected = tokenizer.tokenize(SENTENCES).to_list()
    assert loaded.tokenize(SENTENCES).to_list() == expected
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == [
        tokenizer.file_name
    ]


def test_split_digits_survives_saving(digit_tokenizer, tmp_path):
    digit_tokenizer.save(tmp_path)
    texts = ["42 and 27"]
    loaded = load_tokenizer(tmp_path).tokenize(texts).to_list()
    assert loaded == digit_tokenizer.tokenize(texts).to_list()


def test_load_tokenizer_names_the_absolute_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as error:
        load_tokenizer(".")
    assert str(error.value).startswith(f"{tmp_path}: must contain a tokenizer")


@pytest.mark.fault("F24", "one line that names the file")
def test_damaged_files_are_rejected(tokenizer, tmp_path):
    with pytest.raises(DataError, match="must contain a tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(DataError, match="must contain a tokenizer"):
        load_tokenizer(tmp_path / "missing")
    tokenizer.save(tmp_path)
    path = tmp_path / tokenizer.file_name
    whole = path.read_bytes()
    for content in (b"", whole[: len(whole) // 2], b"{}", b"\x00" * 99, b"[1]"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"{path}: .*"):
            load_tokenizer(tmp_path)


def test_sentencepiece_model_without_bytes_is_rejected(tmp_path):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_prefix=str(tmp_path / "tokenizer"),
        vocab_size=90,
        model_type="bpe",
        minloglevel=2,
    )
    with pytest.raises(DataError, match=r"tokenizer\.model: .* byte fallback"):
        load_tokenizer(tmp_path)


def test_byte_pairs_match_sentencepiece(tmp_path):
    tokenizer = train_tokenizer("bpe", SENTENCES, 380)
    tokenizer.save(tmp_path)
    library = sentencepiece.SentencePieceProcessor(
        model_file=str(tmp_path / "tokenizer.model")
    )
    texts = [text for text in NASTY if not set(text) & {"\u2581", "\uf8fe"}] + SENTENCES
    assert tokenizer.tokenize(texts).to_list() == library.encode(texts)
    ids = [library.pad_id(), library.unk_id(), library.bos_id(), library.eos_id()]
    assert ids == [0, 1, 2, 3]


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
    decoded = [string.decode() for string in tokenizer.detokenize(sampled).numpy()]
    assert decoded == texts
    assert tokenizer.sample(texts, 0.5, 3).to_list() == sampled.to_list()
    assert tokenizer.sample(texts, 0.5, 4).to_list() != sampled.to_list()


def test_word_pieces_reject_dropout():
    tokenizer = train_tokenizer("word_piece", ["ein Mann läuft"] * 9, 284)
    with pytest.raises(DataError, match=r"dropout requires `tokenizer\.kind: bpe`"):
        tokenizer.sample(["ein"], 0.1, 1)


@pytest.mark.fault("F18", "encoded as bytes, never unknown")
def test_rare_characters_are_spelled_in_bytes(tokenizer):
    ids = tokenizer.tokenize(["日"]).to_list()[0]
    assert len([id_ for id_ in ids if 4 <= id_ < 260]) == 3  # ids of bytes


def test_training_is_deterministic(tokenizer):
    again = train_tokenizer(tokenizer.kind, iter(SENTENCES), 380)
    assert again.fingerprint() == tokenizer.fingerprint()


def test_piece_bytes_spell_the_text(tokenizer):
    written = tokenizer.piece_bytes()
    assert len(written) == tokenizer.vocabulary_size
    for text in ("ein  Hund 😀!", " x", "Straße\tß", "猫"):
        (ids,) = tokenizer.tokenize([text]).to_list()
        assert b"".join(written[each] for each in ids) == f" {text}".encode()


@pytest.mark.parametrize("kind", KINDS)
def test_error_names_largest_possible_vocabulary(kind):
    sentences = ["abc abd", "abc ade"]
    with pytest.raises(
        DataError, match=r"vocabulary_size=9000 .* possible value is \d+"
    ) as error:
        train_tokenizer(kind, sentences, 9000)
    largest = int(str(error.value).rstrip(".").split()[-1])
    assert train_tokenizer(kind, sentences, largest).vocabulary_size == largest
    with pytest.raises(DataError, match=f"possible value is {largest}"):
        train_tokenizer(kind, sentences, largest + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_error_names_smallest_possible_vocabulary(kind):
    with pytest.raises(DataError, match=r"vocabulary_size=9 must be at least") as error:
        train_tokenizer(kind, SENTENCES, 9)
    smallest = int(str(error.value).split("at least ")[1].split(",")[0])
    tokenizer = train_tokenizer(kind, SENTENCES, smallest)
    assert tokenizer.vocabulary_size == smallest
    assert round_trip(tokenizer, NASTY) == NASTY
    with pytest.raises(DataError, match=f"at least {smallest},"):
        train_tokenizer(kind, SENTENCES, smallest - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_training_accepts_unusual_text(kind):
    sentences = [None, "", " ", "a\x00b", "a\u2581b\uf8fe\ue000", "x" * 70_000, "ab ab"]
    tokenizer = train_tokenizer(kind, sentences * 3 + SENTENCES, 380)
    assert round_trip(tokenizer, NASTY) == NASTY
    for nothing in ([], [None], ["", "  "]):
        with pytest.raises(DataError, match="at least one text"):
            train_tokenizer(kind, nothing, 400)


def test_train_tokenizer_rejects_unknown_kind():
    with pytest.raises(DataError, match=r"kind must be one of bpe, word_piece.*'bep'"):
        train_tokenizer("bep", SENTENCES, 400)


@pytest.mark.parametrize("kind", KINDS)
def test_real_text_round_trips(kind, data_dir):
    folder = data_dir / "multi30k"
    training = TextFiles(folder / "val.en.gz", folder / "val.de.gz")
    tokenizer = train_tokenizer(
        kind, (text for pair in training for text in pair), 2003
    )
    held_out = TextFiles(
        folder / "test_2016_flickr.fr.gz", folder / "test_2016_flickr.de.gz"
    )
    texts = [text for pair in held_out for text in pair]
    assert round_trip(tokenizer, texts) == texts
    lengths = tokenizer.tokenize([pair[1] for pair in held_out]).row_lengths()
    # The tokenizer has learned German, so an id spells more than three characters.
    characters = sum(len(pair[1]) for pair in held_out)
    assert characters / int(tf.reduce_sum(lengths)) > 3
