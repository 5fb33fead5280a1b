"""The embedded corpus: short phrases in two languages, written by CLDR.

It needs no network and no files: dates, times, numbers, amounts, measures and names
as the Unicode Common Locale Data Repository, through Babel, writes them in each
language. A small model learns it in minutes, and whether a translation is right can
be told exactly, because every source has one target.
"""

import re
import unicodedata
from collections import Counter
from collections import defaultdict
from random import Random
from typing import NamedTuple

from babel import Locale
from babel import UnknownLocaleError

from keras_transformer.errors import DataError
from keras_transformer.pipelines.sources.phrase_forms import KIND_WEIGHTS
from keras_transformer.pipelines.sources.phrase_forms import Form
from keras_transformer.pipelines.sources.phrase_forms import all_forms
from keras_transformer.pipelines.sources.phrase_forms import all_names

# A word is held out only if training shows it at least this often.
MIN_WORD_COUNT = 10
# Draws in a row that give nothing new before the forms count as used up.
MAX_MISSES = 20_000

WORD = re.compile(r"[^\W\d_]+|[^\w\s]")
# Marks of writing direction, which nobody types.
DIRECTION_MARKS = dict.fromkeys(map(ord, "\u061c\u200e\u200f"))

# What Babel raises where a locale has no data for a form or for a value.
WRITE_ERRORS = (
    LookupError,
    AttributeError,
    TypeError,
    ValueError,
    NotImplementedError,
)

Pair = tuple[str, str]


class PhraseSplits(NamedTuple):
    """Lists of (source, target); no source and no target is in two of them."""

    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]


def phrases(
    source_locale: str = "en",
    target_locale: str = "de",
    size: int = 31_500,
    seed: int = 1,
    held_out: int = 500,
) -> PhraseSplits:
    """Draws phrases in two languages; the same arguments give the same phrases.

    Each phrase has a digit in it and each source has one target. Names of countries,
    languages and currencies are held out only beside a number and only where
    training has the name too; the bare names are added to `train`.

    The source has plain spaces where CLDR sets no-break and thin ones, as people
    type; the target is written as CLDR writes it.

    Args:
        source_locale: locale to translate from, such as `en`, `pt_BR` or `zh-Hant`.
        target_locale: locale to translate to.
        size: number of phrases with a digit in them, over the three lists.
        seed: seed of the drawing and of the split.
        held_out: number of phrases in `validation`, and as many in `test`.

    Raises:
        DataError: if Babel does not know a locale, or if the forms cannot give so
            many phrases.
    """
    source = parse_locale("source_locale", source_locale)
    target = parse_locale("target_locale", target_locale)
    if not 0 <= 2 * held_out < size:
        raise DataError(
            "phrases: `size` must be more than twice `held_out`. "
            f"Received: size={size}, held_out={held_out}"
        )
    random = Random(seed)
    pairs = draw_pairs(unambiguous(source, target), source, target, size, random)
    names = bare_names(source, target, known=pairs)
    return split(list(pairs.items()), names, held_out, random)


def parse_locale(argument: str, name: str) -> Locale:
    """Babel's locale of this name; `-` and `_` are both accepted."""
    try:
        return Locale.parse(str(name).replace("-", "_"))
    except (UnknownLocaleError, ValueError, TypeError) as error:
        raise DataError(
            f"phrases: `{argument}` must be a locale that Babel knows, such as "
            f"'en', 'de' or 'pt_BR'. Received: {name!r}"
        ) from error


def write_pair(form: Form, value, source: Locale, target: Locale) -> Pair:
    return as_typed(form.write(value, source)), form.write(value, target)


def as_typed(text: str) -> str:
    """Plain spaces, and no marks of direction."""
    text = text.translate(DIRECTION_MARKS)
    return "".join(" " if unicodedata.category(c) == "Zs" else c for c in text)


def unambiguous(source: Locale, target: Locale) -> list[Form]:
    """The forms whose source text always means one target text.

    In English, "May 7, 2023" is the long and the medium form, which German writes
    in two ways: the form that comes later is left out. So is a form that CLDR does
    not have in both languages.
    """
    targets: dict[str, str] = {}
    kept = []
    for form in all_forms():
        try:
            pairs = [write_pair(form, probe, source, target) for probe in form.probes]
        except WRITE_ERRORS:
            continue
        written: dict[str, str] = {}
        if all(
            text
            and targets.get(text, translation) == translation
            and written.setdefault(text, translation) == translation
            for text, translation in pairs
        ):
            targets.update(written)
            kept.append(form)
    return kept


def draw_pairs(
    forms: list[Form], source: Locale, target: Locale, size: int, random: Random
) -> dict[str, str]:
    """`size` different sources with a digit, each with its target."""
    by_kind: dict[str, list[Form]] = defaultdict(list)
    for form in forms:
        by_kind[form.kind].append(form)
    kinds = list(by_kind)
    weights = [KIND_WEIGHTS[kind] for kind in kinds]
    pairs: dict[str, str] = {}
    misses = 0
    while len(pairs) < size and misses < MAX_MISSES:
        kind = random.choices(kinds, weights)[0]
        form = random.choice(by_kind[kind])
        try:
            text, translation = write_pair(form, form.draw(random), source, target)
        except WRITE_ERRORS:
            misses += 1
            continue
        if text in pairs or not any(character.isdigit() for character in text):
            misses += 1
            continue
        pairs[text] = translation
        misses = 0
    if len(pairs) < size:
        raise DataError(
            f"phrases: `size` must be at most about {len(pairs)} for {source} to "
            f"{target}. Received: size={size}"
        )
    return pairs


def bare_names(source: Locale, target: Locale, known: dict[str, str]) -> list[Pair]:
    """Names of countries, languages and currencies that both languages have."""
    names: dict[str, str] = {}
    for name in all_names():
        try:
            text, translation = as_typed(name(source)), name(target)
        except WRITE_ERRORS:
            continue
        if text and translation and text not in known:
            names.setdefault(text, translation)
    return list(names.items())


def words(pair: Pair) -> list[str]:
    """Runs of letters and single symbols of both sides, told apart by side."""
    return [
        f"{side}:{word}"
        for side, text in enumerate(pair)
        for word in WORD.findall(text)
    ]


def split(
    pairs: list[Pair], names: list[Pair], held_out: int, random: Random
) -> PhraseSplits:
    """Holds out phrases of which training shows every word, with all their twins.

    Phrases with the same target ("Mar 7" and "March 7") stay together, so that no
    held-out translation was seen.
    """
    twins: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        twins[pair[1]].append(pair)
    groups = list(twins.values())
    random.shuffle(groups)
    seen = Counter(word for pair in (*pairs, *names) for word in words(pair))

    train: list[Pair] = list(names)
    # Names written like a phrase's translation would show it.
    shown = {translation for _, translation in names}
    parts: tuple[list[Pair], list[Pair]] = ([], [])
    for group in groups:
        part = next((p for p in parts if len(p) + len(group) <= held_out), None)
        loss = Counter(word for pair in group for word in words(pair))
        if (
            part is None
            or group[0][1] in shown
            or any(seen[word] - count < MIN_WORD_COUNT for word, count in loss.items())
        ):
            train.extend(group)
            continue
        seen.subtract(loss)
        part.extend(group)
    validation, test = parts
    if len(test) < held_out:
        raise DataError(
            "phrases: `held_out` must leave every word in training. "
            f"Received: held_out={held_out}; {len(validation)} and {len(test)} "
            "phrases could be held out"
        )
    for part in (train, validation, test):
        random.shuffle(part)
    return PhraseSplits(train, validation, test)
