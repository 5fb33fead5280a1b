"""The generated phrases: handwritten translations, splits, and hashes of the text.

Each phrase is a date, time, number, name or the like, written in two languages with the
CLDR data of Babel. A form is a pattern that writes one kind of phrase.
"""

import hashlib
import json
import sys
from collections import Counter
from datetime import date, datetime
from decimal import Decimal

import babel
import pytest

from keras_transformer.errors import DataError
from keras_transformer.pipelines.sources.phrases import (
    all_forms,
    count_words,
    hour_skeleton,
    parse_locale,
    phrases,
    select_forms,
    write_pair,
)


@pytest.fixture(scope="module")
def english_german():
    return phrases()


def has_digit(text):
    return any(character.isdigit() for character in text)


def test_phrases_has_the_requested_sizes(english_german):
    train, validation, test = english_german
    assert (len(validation), len(test)) == (500, 500)
    digits = [pair for part in english_german for pair in part if has_digit(pair[0])]
    assert len(digits) == 31_500
    # Phrases without a digit are bare names, in training only.
    names = [pair for pair in train if not has_digit(pair[0])]
    assert ("Germany", "Deutschland") in names
    assert ("Swiss Franc", "Schweizer Franken") in names
    assert len(names) + len(digits) == sum(map(len, english_german))


def test_phrases_splits_share_no_source_or_target(english_german):
    for side in (0, 1):
        sets = [{pair[side] for pair in part} for part in english_german]
        for index, one in enumerate(sets):
            for other in sets[index + 1 :]:
                assert not one & other
    sources = Counter(source for part in english_german for source, _ in part)
    assert max(sources.values()) == 1
    # Each word of a held-out phrase occurs in training.
    train, validation, test = english_german
    seen = count_words(train)
    assert all(seen[word] >= 10 for word in count_words([*validation, *test]))


def test_phrases_match_translations_by_hand(english_german):
    """German has the day first, decimal commas, 24-hour times and no-break spaces."""
    expected = {
        "May 7, 2023": "7. Mai 2023",
        "Tuesday, March 7, 2023": "Dienstag, 7. März 2023",
        "3/7/23": "07.03.23",
        "7 May 2023": "7. Mai 2023",
        "Tuesday, 7 March 2023": "Dienstag, 7. März 2023",
        "7 March": "7. März",
        "2023-03-07": "07.03.2023",
        "3:04 PM": "15:04",
        "12:04 AM": "00:04",
        "-1,234.5": "-1.234,5",
        "12.5%": "12,5\N{NO-BREAK SPACE}%",
        "€1,234.50": "1.234,50\N{NO-BREAK SPACE}€",
        "1 mile": "1 Meile",
        "2.5 miles": "2,5 Meilen",
        "in 3 days": "in 3 Tagen",
        "3 days ago": "vor 3 Tagen",
        "Germany (12%)": "Deutschland (12\N{NO-BREAK SPACE}%)",
    }
    source = parse_locale("source_locale", "en")
    target = parse_locale("target_locale", "de")
    written = {}
    for form in select_forms(source, target):
        for value in (*form.probes, *values_by_hand(form)):
            text, translation = write_pair(form, value, source, target)
            assert written.setdefault(text, translation) == translation
    assert {text: written.get(text) for text in expected} == expected


def values_by_hand(form):
    """Returns the values with which a form writes the phrases expected above."""
    if form.kind == "date":
        return (date(2023, 5, 7), date(2023, 3, 7))
    if form.kind == "time":
        return (datetime(2023, 3, 7, 15, 4), datetime(2023, 3, 7, 0, 4))
    if form.kind in ("number", "percent", "currency", "unit", "name"):
        return tuple(map(Decimal, ("-1234.5", "12.5", "1234.5", "2.5", "12")))
    return ()


@pytest.mark.parametrize(
    ("locale", "skeleton"), [("fr_CA", "Hm"), ("nds", "Hm"), ("en", "hm"), ("ja", "Hm")]
)
def test_hour_skeleton_ignores_literal_text(locale, skeleton):
    assert hour_skeleton(babel.Locale.parse(locale)) == skeleton


@pytest.mark.parametrize(
    "locales", [("en", "de"), ("ja", "en"), ("th", "fa"), ("hi", "zh-Hant")]
)
def test_phrases_have_one_target_per_source_for_all_seeds(locales):
    targets = {}
    for seed in (1, 2):
        splits = phrases(*locales, size=4_001, seed=seed, held_out=101)
        assert (len(splits.validation), len(splits.test)) == (101, 101)
        for source, target in (pair for part in splits for pair in part):
            assert targets.setdefault(source, target) == target
            assert source.strip() and target.strip()
            assert "\N{NO-BREAK SPACE}" not in source
    assert sum(map(has_digit, targets)) > 6_000


@pytest.mark.parametrize("name", ["xx", "no locale", "", "e"])
def test_phrases_name_an_unknown_locale(name):
    with pytest.raises(DataError, match="target_locale") as error:
        phrases("en", name)
    assert repr(name) in str(error.value)


# The phrases depend on the CLDR data of the Babel version.
@pytest.mark.skipif(babel.__version__ != "2.18.0", reason="pinned to Babel 2.18.0")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "8687970fb77772f6916e8e384f11e2cc1c82b5ed82d0890509fa174b8a46a1a7"),
        (
            {"source_locale": "ja", "target_locale": "ar", "seed": 3},
            "8079ef4cafac40a332fc16b387a984e308a4a6204899036a2c5a5030f4285229",
        ),
        (
            {"source_locale": "hi", "target_locale": "zh-Hant", "seed": 5},
            "75fbf95f7afeb08076da9e4dfa49af9c0c550fb3c8efeb8a36a2a503c2c079f7",
        ),
    ],
)
def test_phrases_never_change(english_german, options, expected):
    """Trained models and published scores refer to exactly these phrases."""
    found = english_german
    if options:
        found = phrases(**options, size=9_001, held_out=101)
    content = json.dumps(found).encode()
    assert hashlib.sha256(content).hexdigest() == expected


def test_phrases_refuse_impossible_sizes():
    with pytest.raises(DataError, match=r"data\.size=10, data\.held_out=5"):
        phrases(size=10, held_out=5)
    with pytest.raises(DataError, match="held_out=400"):
        phrases(size=1_000, held_out=400)


def test_phrases_stop_when_forms_are_exhausted(monkeypatch):
    """A request for more phrases than the forms can write does not loop forever."""
    form = next(f for f in all_forms() if f.kind == "relative")
    monkeypatch.setattr(sys.modules[phrases.__module__], "all_forms", lambda: [form])
    select_forms.cache_clear()
    with pytest.raises(DataError, match="at most about 120"):
        phrases(size=500, held_out=3)
    select_forms.cache_clear()
