"""`extend_bpe` adds subwords to a BPE vocabulary. Splits match sentencepiece's."""

import io
import random

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.pipelines import train_tokenizer
from keras_transformer.pipelines.tokenizers.bpe_extension import extend_bpe
from keras_transformer.pipelines.tokenizers.model_check import SPACE_MARK

OLD = ["der Hund läuft und schläft", "die Katze schläft nie", "im Jahr 1987 war es so"]
STEMS = ["Quark", "Quant", "Tarif", "Zoll", "Ökonom", "1987", "żółw", "猫", "Пёс"]
ENDINGS = ["", "en", "s", "ung", ".", "!?", "ħ", "88"]


def sentences(seed, count):
    draw = random.Random(seed)
    return [
        " ".join(
            draw.choice(STEMS) + draw.choice(ENDINGS) for _ in range(draw.randint(1, 8))
        )
        for _ in range(count)
    ]


NEW = sentences(1, 150)


@pytest.fixture(scope="module")
def old():
    return train_tokenizer("bpe", OLD * 3, 330)


@pytest.fixture(scope="module")
def extension(old):
    return extend_bpe(old, [*NEW, None, "", "  "], 60)


def ids(tokenizer, texts):
    return tokenizer.tokenize(texts).to_list()


def test_extension_keeps_old_ids_and_lists_replaced_ones(old, extension):
    spelled, pieces = extension.tokenizer.piece_bytes(), extension.tokenizer.pieces()
    assert pieces[:330] == old.pieces()
    assert len(set(pieces)) == len(pieces) == extension.tokenizer.vocabulary_size == 390
    assert len(extension.replaced) == 60
    for number, replaced in enumerate(extension.replaced, start=330):
        assert max(replaced) < 330
        assert spelled[number] == b"".join(old.piece_bytes()[each] for each in replaced)
    # Characters that were encoded as bytes now have their own ids.
    assert {"ż", "猫", "П", "ħ"} <= set(pieces[330:])
    assert len(ids(extension.tokenizer, ["żżż"])[0]) < len(ids(old, ["żżż"])[0])


def test_new_pieces_are_used(extension):
    """Each merge is used in the new text, unless a later piece contains its piece."""
    pieces = extension.tokenizer.pieces()
    used = {each for row in ids(extension.tokenizer, NEW) for each in row}
    merges = [each for each in range(330, 390) if len(pieces[each]) > 1]
    swallowed = {
        each
        for each in merges
        for other in merges
        if other > each and pieces[each] in pieces[other]
    }
    assert len(merges) > 25
    assert set(merges) <= used | swallowed
    assert "▁Quark" in pieces


def test_extension_shortens_new_text(old, extension):
    before, after = ids(old, NEW), ids(extension.tokenizer, NEW)
    assert sum(map(len, after)) < 0.6 * sum(map(len, before))
    texts = extension.tokenizer.detokenize(extension.tokenizer.tokenize(NEW)).numpy()
    assert [text.decode() for text in texts] == NEW


LETTERS = st.text(alphabet="QuarkHndtlZo sä1987ż猫П.!ung", max_size=24)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(LETTERS)
def test_texts_without_new_pieces_keep_their_split(old, extension, text):
    """In any case, the old and the new ids spell the same bytes."""
    first, second = ids(old, [text])[0], ids(extension.tokenizer, [text])[0]
    if max(second, default=0) < 330:
        assert second == first
    spelled = extension.tokenizer.piece_bytes()
    assert b"".join(spelled[each] for each in second) == b"".join(
        old.piece_bytes()[each] for each in first
    )


def test_most_frequent_pair_is_learned_first():
    old = train_tokenizer("bpe", ["a b c d ab"], 267, split_digits=True)
    assert "▁ab" not in old.pieces()
    grown = extend_bpe(old, ["cd cd cd da da", "11 11 11 11", "c", "b-d b-d"], 9)
    added = [piece for piece in grown.tokenizer.pieces()[267:] if len(piece) > 1]
    # "▁c" occurs four times and "▁cd" three times. "da" and "▁d" both occur twice.
    assert added[:2] == ["▁c", "▁cd"] and added[2] in ("da", "▁d")
    # Digits and hyphens are not merged.
    assert added[3:] == ["▁da"]


@pytest.mark.parametrize(
    "word",
    ["हिन्दी", "ภาษาไทย", "食べるカレー", "תּוֹרָה", "e\u0301te\u0301", "ＡＢＣabc"],
    ids=["Hindi", "Thai", "Japanese", "Hebrew", "accents", "full width"],
)
def test_words_become_one_piece_like_in_sentencepiece(old, word):
    text = [word] * 20
    theirs = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_writer=theirs,
        model_type="bpe",
        vocab_size=60,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    trained = sentencepiece.SentencePieceProcessor(model_proto=theirs.getvalue())
    assert trained.encode(word, out_type=str) == [SPACE_MARK + word]
    extension = extend_bpe(old, text, 60).tokenizer
    assert SPACE_MARK + word in extension.pieces()


def test_text_without_new_pieces_adds_none(old):
    assert extend_bpe(old, ["x"], 5).replaced == []
    assert extend_bpe(old, [], 5).tokenizer.vocabulary_size == 330
