"""A vocabulary that goes on learning, against the sentencepiece library."""

import random

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from keras_transformer.pipelines import load_tokenizer
from keras_transformer.pipelines import train_tokenizer
from keras_transformer.pipelines.tokenizers.bpe_extension import extend_bpe

OLD = ["der Hund läuft und schläft", "die Katze schläft nie", "im Jahr 1987 war es so"]
STEMS = [
    "Quark",
    "Quant",
    "Tarif",
    "Zoll",
    "Ökonom",
    "1987",
    "żółw",
    "猫",
    "Пёс",
    "Hund",
]
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
def growth(old):
    return extend_bpe(old, [*NEW, None, "", "  "], 60)


def ids(tokenizer, texts):
    return tokenizer.tokenize(texts).to_list()


def test_old_pieces_keep_their_ids(old, growth):
    pieces = growth.tokenizer.pieces()
    assert pieces[:330] == old.pieces()
    assert len(set(pieces)) == len(pieces) == growth.tokenizer.vocabulary_size == 390
    assert len(growth.replaced) == 60


def test_new_pieces_replace_what_spelt_them(old, growth):
    spelt = growth.tokenizer.piece_bytes()
    for number, replaced in enumerate(growth.replaced, start=330):
        assert max(replaced) < 330
        assert spelt[number] == b"".join(old.piece_bytes()[each] for each in replaced)
    # Characters that took bytes before have ids of their own.
    assert {"ż", "猫", "П", "ħ"} <= set(growth.tokenizer.pieces()[330:])
    assert len(ids(growth.tokenizer, ["żżż"])[0]) < len(ids(old, ["żżż"])[0])


def test_merges_are_used(growth):
    """But for those that went into later ones whole."""
    pieces = growth.tokenizer.pieces()
    used = {each for row in ids(growth.tokenizer, NEW) for each in row}
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


def test_new_text_gets_shorter_and_comes_back(old, growth):
    before, after = ids(old, NEW), ids(growth.tokenizer, NEW)
    assert sum(map(len, after)) < 0.6 * sum(map(len, before))
    texts = growth.tokenizer.detokenize(growth.tokenizer.tokenize(NEW)).numpy()
    assert [text.decode() for text in texts] == NEW


LETTERS = st.text(alphabet="QuarkHndtlZo sä1987ż猫П.!ung", max_size=24)


@settings(max_examples=300, deadline=None)
@given(LETTERS)
def test_only_what_holds_a_new_piece_is_split_anew(old, growth, text):
    """New pieces spelt out by the old ones that they replace give the old split."""
    first, second = ids(old, [text])[0], ids(growth.tokenizer, [text])[0]
    if max(second, default=0) < 330:
        assert second == first
    spelt = growth.tokenizer.piece_bytes()
    assert b"".join(spelt[each] for each in second) == b"".join(
        old.piece_bytes()[each] for each in first
    )


def test_what_is_learnt_is_how_sentencepiece_splits(old):
    """The learner's words, split by its own merges, are the library's own splits."""
    from sentencepiece import sentencepiece_model_pb2

    from keras_transformer.pipelines.tokenizers import bpe_extension

    learners = []

    class Kept(bpe_extension._Learner):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            learners.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bpe_extension, "_Learner", Kept)
        grown = extend_bpe(old, NEW, 60).tokenizer
    (learner,) = learners
    processor = sentencepiece.SentencePieceProcessor(model_proto=grown.model)
    words = ["".join(word) for word in learner._words]
    assert len(words) > 50
    for word, pieces in zip(words, learner._words, strict=True):
        split = processor.encode(word[1:], out_type=str)
        joined = bpe_extension._joined_bytes(split)
        assert joined == pieces
    proto = sentencepiece_model_pb2.ModelProto.FromString(grown.model)
    assert proto.trainer_spec.vocab_size == 390


def test_the_most_frequent_pair_comes_first():
    old = train_tokenizer("bpe", ["a b c d ab"], 267, split_digits=True)
    assert "▁ab" not in old.pieces()
    grown = extend_bpe(old, ["cd cd cd da da", "11 11 11 11", "c", "b-d b-d"], 9)
    # Digits stay alone and hyphens apart; "da" is there twice, "cd" three times.
    added = [piece for piece in grown.tokenizer.pieces()[267:] if len(piece) > 1]
    assert added[0] in ("cd", "▁c")
    assert set(added) >= {"▁cd"} or "cd" in added
    assert not any("1" in piece and len(piece) > 1 for piece in added)
    assert not any("-" in piece and len(piece) > 1 for piece in added)


def test_symbols_stay_whole():
    symbols = ["(NP", "NP)", "XX"]
    old = train_tokenizer("bpe", OLD, 340, symbols=symbols)
    grown = extend_bpe(old, ["(NP XX NP) Quark"] * 4, 9).tokenizer
    assert ids(grown, ["(NP XX NP)"]) == ids(old, ["(NP XX NP)"])
    assert len(ids(grown, ["Quark"])[0]) < len(ids(old, ["Quark"])[0])


def test_a_text_that_has_nothing_new(old):
    assert extend_bpe(old, ["x"], 5).replaced == []
    assert extend_bpe(old, [], 5).tokenizer.vocabulary_size == 330


def test_saved_and_loaded(growth, tmp_path):
    growth.tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.fingerprint() == growth.tokenizer.fingerprint()
    assert ids(again, NEW[:5]) == ids(growth.tokenizer, NEW[:5])
