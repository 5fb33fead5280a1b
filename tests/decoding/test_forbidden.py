"""The automaton of forbidden phrases, against regular expressions."""

import random
import re

import numpy as np
import pytest
import tiny_export

import keras_transformer as kt
from keras_transformer import pipelines
from keras_transformer.decoding import Phrase
from keras_transformer.decoding import forbidden
from keras_transformer.decoding import forbidden_transitions
from keras_transformer.decoding.forbidden import TEXT_BOUNDARIES
from keras_transformer.decoding.forbidden import build_text_table
from keras_transformer.decoding.forbidden import parse_phrase

# Random strings of these characters often contain the phrases below.
CHARACTERS = "abé .…猫"
PHRASES = [
    "ab",
    "a*",
    "b a b",
    "éa",
    "ba.b",
    "猫a",
    "..",
    "…",
    "a…b",
    "猫",
    "b é*",
    ".",
]


def expression(phrase):
    """Returns the regular expression that finds a phrase in a text.

    A letter at an end of the phrase must be at an end of a word. This does not apply to
    猫, whose script has no spaces between words, or at the end before a `*`.
    """
    words = re.escape(phrase.removesuffix("*"))
    plain = phrase.removesuffix("*")
    before = "(?<![abé猫])" if plain[0] in "abé" else ""
    after = "(?![abé猫])" if plain[-1] in "abé" and phrase[-1] != "*" else ""
    return re.compile(before + words + after)


def first_hit(table, ids):
    """Returns the index of the first token that `table` forbids, or `None`."""
    state = 0
    for count, token in enumerate(ids):
        state = table[state, token]
        if state < 0:
            return count
    return None


@pytest.mark.parametrize("seed", range(20))
def test_table_matches_regular_expressions(seed):
    draw = random.Random(seed)
    phrases = draw.sample(PHRASES, draw.randint(1, 4))
    tokens = [*CHARACTERS, *("".join(draw.choices(CHARACTERS, k=3)) for _ in range(9))]
    spellings = [token.encode() for token in tokens] + [b" "]  # the end of the text
    table = forbidden_transitions(
        spellings, list(map(parse_phrase, phrases)), TEXT_BOUNDARIES
    )
    expressions = list(map(expression, phrases))
    hits = 0
    for _ in range(400):
        ids = [draw.randrange(len(tokens)) for _ in range(draw.randint(1, 6))]
        if draw.random() < 0.5:
            planted = map(tokens.index, draw.choice(phrases).removesuffix("*"))
            place = draw.randrange(len(ids))
            ids[place:place] = planted
        # Tokenizers add a space, `blank`, before a text. It belongs to no word.
        text = "".join(tokens[each] for each in ids)
        is_forbidden = any(each.search(text) for each in expressions)
        blank = tokens.index(" ")
        found = first_hit(table, [blank, *ids, len(tokens)])
        assert (found is not None) == is_forbidden, (phrases, text)
        hits += is_forbidden
    assert hits > 10


def test_phrase_is_found_in_tokens_of_single_bytes():
    spellings = [bytes([byte]) for byte in range(256)]
    table = forbidden_transitions(spellings, [parse_phrase("é")], TEXT_BOUNDARIES)
    # The byte after the word, here with index 3, completes it.
    assert first_hit(table, " é ".encode()) == 3
    assert first_hit(table, " éa ".encode()) is None
    assert first_hit(table, "„é“".encode()) == len("„é".encode()) + 2


def test_phrase_is_found_in_every_spelling_by_subwords():
    texts = ["der Hund und die Hunde", "ein Hund bellt", "Bund und Hand"] * 3
    tokenizer = pipelines.train_tokenizer("bpe", texts, 300)
    table = build_text_table(tokenizer, ["Hund", "Ka*"])
    assert table.dtype == np.int32 and table.shape[1] == 300
    spellings = tokenizer.piece_bytes()

    def splits(rest):
        """Yields the ids of each way to spell `rest` with subwords."""
        if not rest:
            yield []
        for number, piece in enumerate(spellings):
            if piece and rest.startswith(piece):
                yield from ([number, *ids] for ids in splits(rest[len(piece) :]))

    ways = list(splits(b" Hund"))
    assert len(ways) > 7
    for ids in ways:
        assert first_hit(table, [*ids, tokenizer.end_id]) == len(ids)
        for punctuation in (".", "”"):
            (after,) = tokenizer.tokenize([punctuation]).to_list()
            after = [each for each in after if spellings[each] != b" "]
            assert first_hit(table, [*ids, *after]) is not None
    start, end = tokenizer.start_id, tokenizer.end_id
    for ids in splits(b"Hund"):
        # A model may begin a text without the space that encoding puts there.
        assert first_hit(table, [start, *ids, end]) == len(ids) + 1
        assert first_hit(table, [start, *ids, *ids, end]) is None
    for text, allowed in {
        "Hunde und Bund": True,
        "der Hund": False,
        "Die Katze": False,
        "Kabel": False,
        "Haka": True,
    }.items():
        (ids,) = tokenizer.tokenize([text]).to_list()
        assert (first_hit(table, [*ids, tokenizer.end_id]) is None) == allowed, text


def test_translators_that_share_a_model_forbid_their_own_phrases():
    search = kt.BeamSearch(beam_size=1, extra_length=3)
    translator = kt.Translator(*tiny_export.tiny_model(num_layers=1), search=search)
    (free,) = translator.translate(["die Katze"])
    word, *_ = re.findall(r"\w+", free)
    other = translator.with_search(forbidden=[word])
    (constrained,) = other.translate(["die Katze"])
    assert word not in re.findall(r"\w+", constrained) and constrained
    assert translator.translate(["die Katze"]) == [free]


def test_overlapping_phrases_are_found():
    spellings = [(number,) for number in range(4)]
    table = forbidden_transitions(spellings, [Phrase((1, 2, 1, 3)), Phrase((2, 2))])
    assert first_hit(table, [1, 2, 1, 2, 1, 3]) == 5
    assert first_hit(table, [1, 2, 2]) == 2
    assert first_hit(table, [1, 2, 1, 1, 2, 1, 2, 1]) is None


def test_phrase_within_another_is_found():
    spellings = [(number,) for number in range(4)]
    table = forbidden_transitions(spellings, [Phrase((1, 2, 3)), Phrase((2,))])
    assert first_hit(table, [1, 2]) == 1
    assert first_hit(table, [1, 3, 1]) is None


def test_invalid_phrases_are_rejected(monkeypatch):
    assert parse_phrase(" a  b* ") == Phrase((97, 32, 98), at_start=True)
    for text in ("", "  ", "*", " *", " * "):
        with pytest.raises(ValueError, match="is not a phrase that can be forbidden"):
            parse_phrase(text)
    with pytest.raises(ValueError, match="must have at least one symbol"):
        forbidden_transitions([(1,)], [Phrase(())])
    monkeypatch.setattr(forbidden, "MAX_ENTRIES", 9)
    with pytest.raises(
        ValueError, match=r"too many or too long.*Received: 4 states, 3"
    ):
        forbidden_transitions([(0,), (1,), (2,)], [Phrase((1, 2, 1))])
