"""Division of texts into segments that a model can read, and their translations.

In most tests, each Unicode character is a subword.
"""

import itertools
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_array_equal
from toolkit_models import PIECES, splitter

from keras_transformer.decoding.text import (
    EMPTY_SCORE,
    TextOptions,
    join_segments,
    measure_pieces,
    measure_text,
    merge_equal_texts,
    segment,
    untranslated_warning,
)
from keras_transformer.decoding.translator import collect_translations
from keras_transformer.pipelines.tokenizers.marian import MarianTokenizer


def characters(strings):
    return tf.strings.unicode_decode(strings, "UTF-8")


def segments_of(texts, max_length, **options):
    """Returns, for each text, its segments and whether it was truncated.

    A segment is a pair of its text and the gap before it: a space, line breaks, or "".
    """
    found = segment(characters, tf.constant(texts), max_length, **options)
    pairs = [[] for _ in texts]
    written = tf.strings.unicode_encode(found.ids, "UTF-8").numpy()
    for index, text, gap in zip(
        found.text_index.numpy(), written, found.gaps.numpy(), strict=True
    ):
        pairs[index].append((text.decode(), gap.decode()))
    return pairs, found.truncated.numpy().tolist()


def split(text, max_length):
    """Returns the segments of a text. Nothing may be truncated, and gaps are spaces."""
    (pairs,), (truncated,) = segments_of([text], max_length)
    assert not truncated
    assert [gap for _, gap in pairs] == [""] + [" "] * (len(pairs) - 1)
    return [part for part, _ in pairs]


SENTENCES = 'One two. Three four five. "Six (seven!)" Eight nine? Ten… Eleven.'
ABBREVIATIONS = "Dr. E. Meier kam am 3. Mai z. B. aus den U.S. Staaten."


@pytest.mark.parametrize(
    ("text", "max_length", "parts"),
    [
        # A short text is one segment.
        *((text, 18, [text]) for text in ("A dog runs. A cat.", " a\u00a0b. ", "x")),
        (
            *(SENTENCES, 24),
            [
                *("One two.", "Three four five.", '"Six (seven!)"', "Eight nine?"),
                *("Ten…", "Eleven."),
            ],
        ),
        # Abbreviations and numbers do not end sentences.
        (
            *(f"{ABBREVIATIONS} Mr. Hill vs. St. Pius!", 60),
            [ABBREVIATIONS, "Mr. Hill vs. St. Pius!"],
        ),
        (
            *("It cost 3.14 euros, approx. five dollars. In 1999. Then not.", 50),
            ["It cost 3.14 euros, approx. five dollars.", "In 1999.", "Then not."],
        ),
        # Text in lower case is split at every full stop.
        (
            *("one two. three four five. six seven! eight", 20),
            ["one two.", "three four five.", "six seven!", "eight"],
        ),
        ("One two. three four five. Six", 25, ["One two. three four five.", "Six"]),
        # Other scripts.
        ("一二三四五。六七「八九。」十", 8, ["一二三四五。", "六七「八九。」", "十"]),
        ("यह एक है। वह दो है॥ तीन", 12, ["यह एक है।", "वह दो है॥", "तीन"]),
        ("هل هذا؟ نعم. لا", 8, ["هل هذا؟", "نعم.", "لا"]),
        # A sentence that is too long to be one segment is cut into windows of
        # max_length + 1 - half subwords, where half is (max_length + 1) // 2. A segment
        # contains the words that begin in the same window.
        ("aaa bbb ccc ddd", 12, ["aaa bbb", "ccc ddd"]),
        ("a b c d e f g h", 8, ["a b c", "d e", "f g h"]),
        ("一二三，四五六七八", 4, ["一二三，", "四五", "六七八"]),
    ],
)
def test_text_is_split_into_sentences_and_words(text, max_length, parts):
    assert split(text, max_length) == parts


def test_each_line_is_judged_by_its_own_length():
    pairs, _ = segments_of(["A. B.\n" + SENTENCES, SENTENCES], 24)
    assert [len(each) for each in pairs] == [7, 6]
    assert pairs[0][:2] == [("A. B.", ""), ("One two.", "\n")]


@pytest.mark.parametrize("text", ["", " \t", "\n\r\n", "\u3000\u00a0", "\u200b\u2028"])
def test_blank_text_has_no_ids(text):
    assert segments_of([text], 9) == ([[("", "")]], [False])


def test_blank_text_has_no_ids_of_a_language():
    """The tokenizer adds four ids to every text. Blank segments must not get them."""

    def tokenize(strings):
        return characters(tf.strings.join([">fr<", strings]))

    found = segment(tokenize, tf.constant(["", "a\n\n", "b"]), 9)
    assert found.ids.row_lengths().numpy().tolist() == [0, 5, 0, 5]
    assert found.text_index.numpy().tolist() == [0, 1, 1, 2]


def test_line_breaks_are_gaps():
    pairs, _ = segments_of(["One. Two\n\n  Three \r\nFour\u2029Five\n", "\n\tSix"], 9)
    assert pairs == [
        [
            ("One. Two", ""),
            ("Three", "\n\n  "),
            ("Four", " \r\n"),
            ("Five", "\u2029"),
            ("", "\n"),
        ],
        [("", ""), ("Six", "\n\t")],
    ]


def test_words_that_are_too_long_are_cut():
    text = "Hi. Aa " + "x" * 9 + " bb cc. Then"
    pairs, truncated = segments_of([text, "x", "y" * 6], 6)
    assert [part for part, _ in pairs[0]] == ["Hi.", "Aa", "x" * 6, "bb", "cc.", "Then"]
    assert truncated == [True, False, False]


@pytest.mark.parametrize("max_length", [60, 61, 100, 1000])
def test_segments_lose_only_whitespace(max_length):
    text = "Hi. " + "word, " * 37 + "x" * 53 + " 。end.   \u00a0 Last one! " + "漢" * 99
    (pairs,), (truncated,) = segments_of([text], max_length)
    parts = [part for part, _ in pairs]
    assert max(map(len, parts)) <= max_length and not truncated
    assert "".join("".join(parts).split()) == "".join(text.split())
    if max_length < 1000:
        # Segments are about half full or fuller, except the last one of each sentence.
        # The text has five sentences.
        assert len(parts) <= 5 + 2 * len(text) / max_length


def test_segments_are_independent_of_the_batch():
    rng = np.random.default_rng(5)
    pieces = ["Ab.", "cd", "\n", " ", "。", "1.", "x" * 9, "漢", "! Q", "\u3000", "…"]
    texts = ["".join(rng.choice(pieces, 30)) for _ in range(40)]
    together, truncated = segments_of(texts, 7)
    for text, pairs, is_cut in zip(texts, together, truncated, strict=True):
        assert segments_of([text], 7) == ([pairs], [is_cut])
    assert 3 < sum(truncated) < 40


@pytest.mark.parametrize("language", [None, "fra"])
def test_language_prefix_precedes_each_segment(language):
    side = (PIECES, splitter())
    plain = MarianTokenizer(side, side)
    tokenizer = MarianTokenizer(side, side, language=language)
    texts = ["a b c d e f ab b f e d c b a\n\nab. B c d e.", "", "a\nb", "ab" * 9]
    marked = [text if language else f">>fra<< {text}" for text in texts]

    def found(tokenizer, texts, max_length):
        split_prefix = tokenizer.split_language_prefix
        return segment(
            tokenizer.tokenize,
            tf.constant(texts),
            max_length,
            split_prefix=split_prefix,
        )

    # The prefix takes one of the five subwords of each segment.
    without, with_prefix = found(plain, texts, 4), found(tokenizer, marked, 5)
    prefix = PIECES.index(">>fra<<")
    rows = [[prefix] * bool(row) + row for row in without.ids.to_list()]
    assert with_prefix.ids.to_list() == rows and len(rows) > 9
    for name in ("text_index", "gaps", "truncated"):
        assert_array_equal(getattr(with_prefix, name), getattr(without, name))


def test_language_prefix_of_a_text_replaces_the_default_in_each_segment():
    side = ((*PIECES, ">>deu<<"), splitter())
    tokenizers = [MarianTokenizer(side, side, language=each) for each in (None, "fra")]
    texts = tf.constant([">>deu<< a b c d e f ab b f e d c b a\n\nab. B c", "a\nb"])
    plain, default = (
        segment(each.tokenize, texts, 5, split_prefix=each.split_language_prefix)
        for each in tokenizers
    )
    *rows, first, last = plain.ids.to_list()
    deu, fra = len(PIECES), PIECES.index(">>fra<<")
    assert len(rows) > 4 and all(row[0] == deu for row in rows if row)
    assert default.ids.to_list() == [*rows, [fra, *first], [fra, *last]]
    for name in ("text_index", "gaps", "truncated"):
        assert_array_equal(getattr(default, name), getattr(plain, name))


def round_trip(texts, **options):
    """Returns the sources of all segments, and the texts if they are not translated."""
    options = TextOptions(**options)
    found = segment(characters, tf.constant(texts), 256, options=options)
    written = tf.strings.unicode_encode(found.ids, "UTF-8")
    lists = (
        written[:, None],
        tf.zeros([len(written), 1]),
        tf.ones(len(written), tf.int32),
    )
    joined = join_segments(found, *lists)[0].numpy()[:, 0]
    sources = [text.decode() for text in written.numpy() if text]
    return sources, [text.decode() for text in joined]


@pytest.mark.parametrize(
    "sentences",
    [
        ("My dog ran.", "It is old!", "Is it?", "(Yes.)", '"No."', "I know…", "Well."),
        ("Dr. Hill met J. R. Smith at 3.14 p.m. on Dec. 5, 2012.", "He left."),
        ("Am 3. Oktober kam ca. 5 Mio. Gäste bzw. Dr. Meier.", "Das war z. B. neu."),
        ("Il a dit : « Oui. »", "Elle est partie.", "M. Petit aussi."),
        ("La Sra. Díaz vive en la ul. Długa.", "Il Sig. Rossi è qui.", "E tu?"),
        ("Дом на ул. Ленина.", "Я сказал им.", "Он ушёл."),
        ("See https://a.org/b.html?c=De.", "Then e.g. go."),
        ("He said “Stop.”", "‘Why?’", "No. 5 is here."),
        ("one two.", "three."),
        ("هل هذا؟", "نعم."),
    ],
)
def test_lines_are_divided_into_sentences(sentences):
    text = " ".join(sentences)
    assert round_trip([text], sentences=True) == ([*sentences], [text])


LAYOUT = {
    "  - First point.  ": ["First point."],
    "\t* [x] done\t": ["done"],
    "12. Open the door\r\n 3) Close it": ["Open the door", "Close it"],
    "## Title": ["Title"],
    "> > A quote": ["A quote"],
    "Name\tAge\t\tCity": ["Name", "Age", "City"],
    "| Name | Age |\n|:-----|----:|\n| Tom | 31 |": ["Name", "Age", "Tom"],
    "One.   Two.\u00a0 Three!": ["One.", "Two.", "Three!"],
    "*** 12:30 --- 👍": [],
    "✓ A file.\n🎉👍🏽 ❤️ A dog\n♪ I love you ♪": ["A file.", "A dog", "I love you"],
    "=> [1] A cat ran. ✓ It is old. 👍 \n[x] > a": ["A cat ran.", "It is old.", "a"],
    "One.[1][2] Two. [3] Three.[4] ": ["One.", "Two.", "Three."],
    "{% if x %} {% y %}A dog.{% else %}\n{% y %}": ["A dog."],
    "I see a[1]\nA x® y®, 3 > 2": ["I see a[1]", "A x® y®, 3 > 2"],
    "-5 degrees, 3.5 meters": ["-5 degrees, 3.5 meters"],
    "十九 one": ["十九 one"],
    "Это дом. A house.\nไทย": ["A house."],
    "": [],
}


def test_layout_and_other_scripts_are_kept():
    options = {"layout": True, "sentences": True, "scripts": ("Latin",)}
    for text, sources in LAYOUT.items():
        assert round_trip([text], **options) == (sources, [text]), text
    texts = [*LAYOUT]
    assert round_trip(texts, **options) == ([*itertools.chain(*LAYOUT.values())], texts)
    # Without a known script, only lines without letters are kept.
    options["scripts"] = ()
    assert round_trip(["Это дом. 12\nไทย"], **options)[0] == ["Это дом.", "ไทย"]
    # If training text had numbers, they are translated.
    options |= {"scripts": ("Latin",), "numbers": True}
    assert round_trip(["12:30 👍\n---\nไทย 5"], **options)[0] == ["12:30"]


def test_random_texts_keep_their_layout():
    rng = np.random.default_rng(5)
    pieces = [
        "Ab.",
        "cd",
        "\n",
        " ",
        "1.",
        "- ",
        "ЖЗ",
        "|",
        "\t",
        "\u3000",
        "…",
        '"',
        "» ",
    ]
    texts = ["x" + "".join(rng.choice(pieces, 30)) for _ in range(200)]
    options = {"layout": True, "sentences": True, "scripts": ("Latin",)}
    assert round_trip(texts, **options)[1] == texts


CASES = {
    # A source, what is translated, and the text of the translation "elle est là".
    "SHE IS THERE.": ("She is there.", "ELLE EST LÀ"),
    "She is there.": ("She is there.", "Elle est là"),
    "she is There.": ("she is There.", "elle est là"),
    "she is there!": ("She is there!", "elle est là"),
    "she is there": ("she is there", "elle est là"),
    "NATO": ("NATO", "Elle est là"),
    "(‘She is": ("(‘She is", "Elle est là"),
    "ÉCOLE ΣΟΦΊΑ": ("École σοφία", "ELLE EST LÀ"),
    "我喜欢 NVIDIA 的显卡。": ("我喜欢 NVIDIA 的显卡。", "elle est là"),
}


def test_translations_follow_the_case():
    found = segment(
        characters, tf.constant([*CASES]), 99, options=TextOptions(case=True)
    )
    written = tf.strings.unicode_encode(found.ids, "UTF-8").numpy()
    texts = tf.fill([len(CASES), 1], "elle est là")
    lists = texts, tf.zeros(texts.shape), tf.ones(len(CASES), tf.int32)
    joined = join_segments(found, *lists)[0].numpy()[:, 0]
    both = [
        tuple(map(bytes.decode, each)) for each in zip(written, joined, strict=True)
    ]
    assert both == [*CASES.values()]
    # Georgian sentences begin with no capital.
    gaps = found._replace(ids=found.ids[:2], cases=found.cases[:2])._asdict()
    gaps |= {name: gaps[name][:2] for name in ("text_index", "gaps", "truncated")}
    lists = tf.fill([2, 1], "ის აქ არის"), tf.zeros([2, 1]), tf.ones(2, tf.int32)
    joined = join_segments(type(found)(**gaps), *lists)[0].numpy()[:, 0]
    assert [each.decode() for each in joined] == ["ᲘᲡ ᲐᲥ ᲐᲠᲘᲡ", "ის აქ არის"]
    # Words that usually have capitals get them.
    options = TextOptions(case=True, words=("I", "NATO", "École"))
    lines = ["i'm at the école i.", "I am at the école.", "NATO, I", "NATO-ÉCOLE", ""]
    found = segment(characters, tf.constant(lines), 99, options=options)
    written = tf.strings.unicode_encode(found.ids, "UTF-8").numpy()
    expected = ["I'm at the École I.", *lines[1:3], "NATO-École", ""]
    assert [each.decode() for each in written] == expected
    # Only the first part of a divided sentence begins a translation.
    found = segment(
        characters, tf.constant(["Abc Def."]), 5, options=TextOptions(case=True)
    )
    assert found.cases.numpy().tolist() == [1, 0]


def test_settings_of_a_vocabulary():
    english = ["▁The", "▁the", "▁dog", "ing", "▁Rome", ">>fra<<", "▁", "3", "。"]
    chinese = ["▁狗", "我们", "▁NBA", "。", "的"]
    french = ["▁Le", "▁le", "▁Ω", "é"]
    assert measure_pieces(english, french) == {"capitals": True, "scripts": ["Latin"]}
    assert measure_pieces(chinese, english) == {
        "capitals": True,
        "scripts": ["Latin", "Han"],
    }
    lowered = [piece.lower() for piece in english]
    assert not measure_pieces(lowered, english)["capitals"]
    assert not measure_pieces(english, lowered)["capitals"]
    # A vocabulary of many scripts hardly has subwords of some.
    many = [*english, "дом", "σοφία", "סלאם", "سلام"]
    assert measure_pieces(many, english) == {"capitals": True, "scripts": []}


def test_measured_settings():
    english = ["The dog ran.", "It is old. It is.", "A Ω sign", "Who?", "No"] * 3
    chinese = ["狗跑了。", "它很老。是的。", "一", "谁？", "不"] * 3
    both = {"sentences": True, "capitals": True, "numbers": False}
    both |= {"scripts": ["Latin", "Greek"], "words": ["Ω"]}
    assert measure_text(english, english) == both
    assert measure_text(english, chinese) == {**both, "capitals": False}
    paragraphs = [" ".join(english[:4])] * 4
    found = measure_text(paragraphs + chinese, paragraphs + english)
    assert found == {
        "sentences": False,
        "capitals": False,
        "scripts": ["Latin", "Greek", "Han"],
        "words": ["Who", "Ω"],
        "numbers": False,
    }
    numbers = ["No. 5", "$3.50", "A dog", "1 – 2"]
    assert measure_text([*english, *numbers], [*english, *numbers])["numbers"]
    counts = {"Tom": 3, "tea": 3, "IBM": 2, "Rome": 9, "rome": 1, "May": 8, "may": 1}
    names = [f"A word for {name}." for name in Counter(counts).elements()]
    assert measure_text(names, english)["words"] == ["Rome", "Tom"]


@pytest.mark.parametrize(
    ("text", "shown", "script"),
    [
        ("Это a", "Это a", "Cyrillic"),
        (
            "It is これは日本語の文です good.",
            "It is これは日本語の文です good.",
            "Hiragana",
        ),
        ("ᚠᚢ", "ᚠᚢ", "unknown"),
        ("Б" * 41, "Б" * 37 + "...", "Cyrillic"),
    ],
)
def test_warnings_name_the_other_script(text, shown, script):
    found = untranslated_warning(text, ["Latin"])
    assert found.startswith(f"'{shown}' is not") and found.endswith(f"({script}).")


def test_join_segments_joins_each_rank():
    """Shorter lists repeat their last translation, and scores are added.

    A gap of a space is omitted before an empty translation. Line breaks are kept.
    """
    found = segment(characters, tf.constant(["A. B.\n\nC", "D"]), 3)
    lists = [
        [("a", -1.0), ("b", -2.0)],
        [("", -0.5)],
        [("c", -1.0), ("", -4.0), ("d", -8.0)],
        [("e", -3.0)],
    ]
    padded = [[*ranked, *[("?", 9.0)] * (3 - len(ranked))] for ranked in lists]
    texts = tf.constant([[text for text, _ in ranked] for ranked in padded])
    scores = tf.constant([[score for _, score in ranked] for ranked in padded])
    counts = tf.constant(list(map(len, lists)))
    joined = join_segments(found, texts, scores, counts)
    joined = collect_translations(*(each.numpy() for each in joined))
    assert [[tuple(each[:2]) for each in ranked] for ranked in joined] == [
        [("a\n\nc", -2.5), ("b\n\n", -6.5), ("b\n\nd", -10.5)],
        [("e", -3.0)],
    ]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_merge_equal_texts_keeps_the_best_scores(n):
    texts = [["Hund", "ein", "Hund", "ein", "Katze", "Hund"], ["ein"] * 3 + [""] * 3]
    scores = np.array([-1.0, -2, -2.5, -3, -4, -5], "float32")
    scores = np.stack([scores, np.where(np.arange(6) < 3, scores, -np.inf)])
    found = merge_equal_texts(tf.constant(texts), tf.constant(scores), n)
    first = [("Hund", -1.0), ("ein", -2.0), ("Katze", -4.0)]
    merged = collect_translations(*(each.numpy() for each in found))
    merged = [[tuple(each[:2]) for each in ranked] for ranked in merged]
    assert merged == [first[:n], [("ein", -1.0)]]
    assert found[0].numpy()[1].tolist() == [b"ein", b"", b""][:n]
    np.testing.assert_array_equal(found[1][1], [-1, EMPTY_SCORE, EMPTY_SCORE][:n])
    # The first text is kept even without a score.
    *found, counts = merge_equal_texts(tf.constant(texts), scores * np.nan, n)
    assert found[0].numpy()[:, 0].tolist() == [b"Hund", b"ein"]
    assert counts.numpy().tolist() == [1, 1] and np.isnan(found[1][:, 0]).all()
