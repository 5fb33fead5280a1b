"""Short phrases in two languages, generated with Babel.

Babel writes dates, times, numbers, amounts of money, measurements and names with the
data of the Unicode Common Locale Data Repository, so the corpus needs neither network
nor files. A small model learns the corpus in minutes. Every source has exactly one
correct target.
"""

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from babel import Locale, UnknownLocaleError

from keras_transformer.errors import DataError
from keras_transformer.pipelines.sources.base import Pair
from keras_transformer.pipelines.sources.phrase_forms import (
    PHRASE_KINDS,
    Form,
    all_forms,
    all_names,
)

# Minimum number of times that each word of a held-out phrase occurs in training.
MIN_WORD_COUNT = 10
# The forms count as exhausted after this number of consecutive draws without a new
# phrase.
MAX_MISSES = 20_000

WORD = re.compile(r"[^\W\d_]+|[^\w\s]")
# Directional formatting characters, which people do not type.
DIRECTION_MARKS = dict.fromkeys(map(ord, "\u061c\u200e\u200f"))
# Babel raises these if a locale has no data for a form or a value.
WRITE_ERRORS = LookupError, AttributeError, TypeError, ValueError, NotImplementedError


class PhraseSplits(NamedTuple):
    """Lists of (source, target). No two lists share a source or a target."""

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
    """Draws phrases in two languages. Equal arguments give equal phrases.

    The phrases contain digits. `train` also has names of countries, languages and
    currencies, without digits. Where CLDR uses no-break or thin spaces, the source has
    plain spaces, as people type. The target keeps the spaces of CLDR.

    Args:
        source_locale: Locale to translate from, such as `en`, `pt_BR` or `zh-Hant`.
        target_locale: Locale to translate to.
        size: Number of phrases with digits, in all three lists together.
        seed: Seed for drawing the phrases and for splitting them.
        held_out: Number of phrases in each of `validation` and `test`.

    Raises:
        DataError: If Babel does not support a locale, `size` is not more than twice
            `held_out`, or there are not enough different phrases.
    """
    source = parse_locale("source_locale", source_locale)
    target = parse_locale("target_locale", target_locale)
    if not 0 <= 2 * held_out < size:
        raise DataError(
            "phrases: `size` must be more than twice `held_out`. "
            f"Received: size={size}, held_out={held_out}."
        )
    random = Random(seed)
    pairs = _draw_pairs(select_forms(source, target), source, target, size, random)
    names = _bare_names(source, target, known=pairs)
    return _split(list(pairs.items()), names, held_out, random)


def parse_locale(argument: str, name: str) -> Locale:
    """Parses a locale name with `-` or `_`. The error message names `argument`."""
    try:
        return Locale.parse(str(name).replace("-", "_"))
    except (UnknownLocaleError, ValueError, TypeError) as error:
        raise DataError(
            f"phrases: `{argument}` must be a locale that Babel supports, such as "
            f"'en', 'de' or 'pt_BR'. Received: {name!r}."
        ) from error


def write_pair(form: Form, value, source: Locale, target: Locale) -> Pair:
    """Writes a value in both languages."""
    write_source = form.write_source or form.write
    text = write_source(value, locale=source)
    return _as_typed(text), form.write(value, locale=target)


def _as_typed(text: str) -> str:
    """Replaces spaces of any kind with plain ones and removes direction marks."""
    return re.sub(r"\s", " ", text.translate(DIRECTION_MARKS))


@functools.cache
def select_forms(source: Locale, target: Locale) -> tuple[Form, ...]:
    """Returns forms that give each source text exactly one target text.

    English writes "May 7, 2023" for both the long and the medium form, but German does
    not, so the later form is dropped. Forms that CLDR lacks in one of the languages are
    dropped as well.
    """
    targets: dict[str, str] = {}
    kept = []
    for form in all_forms():
        try:
            pairs = [write_pair(form, probe, source, target) for probe in form.probes]
        except WRITE_ERRORS:
            continue
        extended = dict(targets)
        if all(
            text and extended.setdefault(text, translation) == translation
            for text, translation in pairs
        ):
            targets = extended
            kept.append(form)
    return tuple(kept)


def _draw_pairs(
    forms: Sequence[Form], source: Locale, target: Locale, size: int, random: Random
) -> dict[str, str]:
    """Returns `size` different sources with a digit, each with its target."""
    by_kind = defaultdict(list)
    for form in forms:
        by_kind[form.kind].append(form)
    weights = [PHRASE_KINDS[kind][0] for kind in by_kind]
    pairs: dict[str, str] = {}
    misses = 0
    while len(pairs) < size and misses < MAX_MISSES:
        misses += 1
        form = random.choice(by_kind[random.choices(list(by_kind), weights)[0]])
        try:
            text, translation = write_pair(form, form.draw(random), source, target)
        except WRITE_ERRORS:
            continue
        if text not in pairs and any(character.isdigit() for character in text):
            pairs[text] = translation
            misses = 0
    if len(pairs) < size:
        raise DataError(
            f"phrases: `size` must be at most about {len(pairs)} for {source} to "
            f"{target}. Received: size={size}."
        )
    return pairs


def _bare_names(source: Locale, target: Locale, known: dict[str, str]) -> list[Pair]:
    """Returns names of countries, languages and currencies in both languages.

    Names whose source text is in `known` are omitted.
    """
    names: dict[str, str] = {}
    for name in all_names():
        try:
            text, translation = _as_typed(name(source)), name(target)
        except WRITE_ERRORS:
            continue
        if text and translation and text not in known:
            names.setdefault(text, translation)
    return list(names.items())


def count_words(pairs: list[Pair]) -> Counter:
    """Counts words and single symbols, separately for each side."""
    return Counter(
        f"{side}:{word}"
        for pair in pairs
        for side, text in enumerate(pair)
        for word in WORD.findall(text)
    )


def _split(
    pairs: list[Pair], names: list[Pair], held_out: int, random: Random
) -> PhraseSplits:
    """Holds out phrases whose words all occur often enough in the training phrases.

    Phrases with the same target ("Mar 7" and "March 7") stay together, so that training
    contains no held-out translation.
    """
    by_target = defaultdict(list)
    for pair in pairs:
        by_target[pair[1]].append(pair)
    groups = list(by_target.values())
    random.shuffle(groups)
    remaining = count_words([*pairs, *names])
    name_targets = {translation for _, translation in names}
    train, validation, test = list(names), [], []
    for group in groups:
        part = validation if len(validation) + len(group) <= held_out else test
        words = count_words(group)
        if (
            len(part) + len(group) > held_out
            or group[0][1] in name_targets
            or any(
                remaining[word] - count < MIN_WORD_COUNT
                for word, count in words.items()
            )
        ):
            part = train
        else:
            remaining.subtract(words)
        part.extend(group)
    if len(test) < held_out:
        raise DataError(
            "phrases: `held_out` must be small enough that each word of a held-out "
            f"phrase remains {MIN_WORD_COUNT} times in training. Received: "
            f"held_out={held_out}. Only {len(validation)} phrases for validation and "
            f"{len(test)} for testing can be held out."
        )
    for part in (train, validation, test):
        random.shuffle(part)
    return PhraseSplits(train, validation, test)
