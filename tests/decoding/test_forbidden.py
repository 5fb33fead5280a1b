"""The automaton of forbidden phrases, against regular expressions."""

import random
import re

import numpy as np
import pytest
import tiny_export
from keras import ops

import keras_transformer as kt
from keras_transformer import pipelines
from keras_transformer.decoding import Phrase, forbidden_transitions
from keras_transformer.decoding.forbidden import (
    FORBIDDEN,
    TEXT_BOUNDARIES,
    Automaton,
    build_text_automaton,
    parse_phrase,
)

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
    "b ab",
    "ab a",
    "a b",
    "b",
    "b….b",
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


def dense(automaton):
    """Returns the next states after all tokens, `[num_states, num_ids]`."""
    shape = len(automaton.row_of), automaton.rows.shape[1]
    states, tokens = np.indices(shape, "int32").reshape(2, -1)
    return np.reshape(automaton.next_states(states, tokens), shape)


def first_hit(table, ids):
    """Returns the index of the first token that `table` forbids, or `None`."""
    state = 0
    for count, token in enumerate(ids):
        state = table[state, token]
        if state < 0:
            return count
    return None


@pytest.mark.parametrize("seed", range(20))
def test_automaton_matches_regular_expressions(seed):
    draw = random.Random(seed)
    phrases = draw.sample(PHRASES, draw.randint(1, 7))
    # Tokens may begin and end within a character.
    strings = ["".join(draw.choices(CHARACTERS, k=3)).encode() for _ in range(30)]
    spellings = [bytes([each]) for each in range(256)]
    spellings += [each[draw.randrange(3) :] for each in strings]
    table = dense(
        forbidden_transitions(
            spellings, list(map(parse_phrase, phrases)), TEXT_BOUNDARIES
        )
    )
    expressions = list(map(expression, phrases))
    hits = 0
    for _ in range(400):
        text = "".join(draw.choices(CHARACTERS, k=draw.randint(1, 9)))
        if draw.random() < 0.5:
            place = draw.randrange(len(text))
            planted = draw.choice(phrases).removesuffix("*")
            text = text[:place] + planted + text[place:]
        is_forbidden = any(each.search(text) for each in expressions)
        # Tokenizers add a space before a text, and the end of a text spells a space.
        ids, rest = [], b" " + text.encode() + b" "
        while rest:
            fitting = [k for k, each in enumerate(spellings) if rest.startswith(each)]
            ids.append(draw.choice(fitting))
            rest = rest[len(spellings[ids[-1]]) :]
        found = first_hit(table, ids)
        assert (found is not None) == is_forbidden, (phrases, text, ids)
        hits += is_forbidden
    assert hits > 10


def test_many_phrases_need_little_memory():
    """Of many phrases, the automaton is far smaller than a table of states and ids."""
    draw = random.Random(1)

    def words(count, length):
        return ["".join(draw.choices("abcdefghijk", k=length)) for _ in range(count)]

    pieces = [f"{draw.choice(' -')}{each}".strip("-") for each in words(4_000, 3)]
    spellings = [each.encode() for each in (*" abcdefghijk", *pieces)]
    single = words(1_000, 9)
    pairs = list(map(" ".join, zip(words(500, 5), single, strict=False)))
    stems = [f"{each}*" for each in words(500, 5)]
    phrases = list(map(parse_phrase, single + pairs + stems))
    automaton = forbidden_transitions(spellings, phrases, TEXT_BOUNDARIES)
    dense_bytes = 4 * len(automaton.row_of) * len(spellings)
    assert sum(each.nbytes for each in automaton) < dense_bytes / 10
    automaton = Automaton(*map(ops.convert_to_tensor, automaton))
    known = {*single, *pairs}
    beginnings = {stem[:-1] for stem in stems}
    hits = 0
    for text in draw.sample(single, 20) + draw.sample(pairs, 20) + words(20, 7):
        other = draw.choice(["", "k", " k", "k "])
        text = text + other
        parts = text.split()
        expected = bool({*parts, text.strip()} & known) or any(
            part[:5] in beginnings for part in parts
        )
        state = 0
        for character in f" {text} ":
            token = ops.array([spellings.index(character.encode())])
            state = int(automaton.next_states(ops.array([state]), token)[0])
            if state == FORBIDDEN:
                break
        assert (state == FORBIDDEN) == expected, text
        hits += expected
    assert 10 < hits < 50


def test_phrase_is_found_in_tokens_of_single_bytes():
    spellings = [bytes([byte]) for byte in range(256)]
    phrases = [parse_phrase("é")]
    table = dense(forbidden_transitions(spellings, phrases, TEXT_BOUNDARIES))
    # The byte after the word, here with index 3, completes it.
    assert first_hit(table, " é ".encode()) == 3
    assert first_hit(table, " éa ".encode()) is None
    assert first_hit(table, "„é“".encode()) == len("„é".encode()) + 2


def test_phrase_is_found_in_every_spelling_by_subwords():
    texts = ["der Hund und die Hunde", "ein Hund bellt", "Bund und Hand"] * 3
    tokenizer = pipelines.train_tokenizer("bpe", texts, 300)
    table = dense(build_text_automaton(tokenizer, ["Hund", "Ka*"]))
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
    phrases = [Phrase((1, 2, 1, 3)), Phrase((2, 2))]
    table = dense(forbidden_transitions(spellings, phrases))
    assert first_hit(table, [1, 2, 1, 2, 1, 3]) == 5
    assert first_hit(table, [1, 2, 2]) == 2
    assert first_hit(table, [1, 2, 1, 1, 2, 1, 2, 1]) is None
    table = dense(forbidden_transitions(spellings, [Phrase((1, 2, 3)), Phrase((2,))]))
    assert first_hit(table, [1, 2]) == 1
    assert first_hit(table, [1, 3, 1]) is None


def test_invalid_phrases_are_rejected():
    assert parse_phrase(" a  b* ") == Phrase((97, 32, 98), at_start=True)
    for text in ("", "  ", "*", " *", " * "):
        with pytest.raises(ValueError, match="is not a phrase that can be forbidden"):
            parse_phrase(text)
    with pytest.raises(ValueError, match="must have at least one symbol"):
        forbidden_transitions([(1,)], [Phrase(())])
