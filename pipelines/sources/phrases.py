"""Short phrases in two languages, generated with Babel.

A `Form` draws a random value, such as a date, and writes it in any locale. The same
value in two locales is a pair of phrases with the same meaning. Babel writes dates,
times, numbers, amounts of money, measurements and names with the data of the Unicode
Common Locale Data Repository (CLDR), so the corpus needs neither network nor files. A
small model learns the corpus in minutes. Every source has exactly one correct target.
"""

# ruff: noqa: SIM905 (codes read better in one string than in forty)

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from random import Random
from typing import NamedTuple

from babel import Locale, UnknownLocaleError, dates, numbers, units

from keras_transformer.errors import DataError
from keras_transformer.pipelines.sources.base import Pair

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

# The relative frequency of each kind of phrase.
WEIGHTS = {
    **{"date": 32, "time": 10, "number": 14, "percent": 6, "compact": 4},
    **{"currency": 14, "unit": 16, "relative": 5, "interval": 6, "name": 8},
}
TERRITORIES = (
    "AR AT AU BE BR CA CH CN CZ DE DK EG ES FI FR GB GR HU IE IN IT JP KE "
    "KR MX NG NL NO NZ PL PT RO RU SE TR UA US ZA"
).split()
LANGUAGES = (
    "ar cs da de el en es fi fr hi hu it ja ko nl nb pl pt ro ru sv tr uk zh"
).split()
CURRENCIES = "AUD BRL CAD CHF CNY CZK DKK EUR GBP HUF INR JPY PLN SEK TRY USD".split()
UNITS = (
    "length-kilometer length-meter length-centimeter length-millimeter length-mile "
    "mass-tonne mass-kilogram mass-gram volume-liter volume-milliliter "
    "area-square-meter area-square-kilometer area-hectare volume-cubic-meter "
    "speed-kilometer-per-hour speed-meter-per-second temperature-celsius "
    "duration-second duration-minute duration-hour duration-day duration-week "
    "duration-month duration-year digital-megabyte digital-gigabyte power-watt "
    "power-kilowatt energy-kilowatt-hour electric-volt pressure-bar angle-degree"
).split()
DAY = 86_400  # seconds
SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": DAY, "week": 7 * DAY}
SECONDS |= {"month": 30 * DAY, "year": 365 * DAY}
# Named formats of Babel. The other date forms are CLDR skeletons, which list the fields
# of a date, such as year and month.
DATE_STYLES = ("full", "long", "short", "medium")
DATE_FORMS = (
    "full long short yMMMd yMd yMMMEd MMMMd MMMd MMMEd yMMMM yMMM yQQQ yQQQQ yw medium"
).split()
# Date forms that write the month as a word. They remain unambiguous if the day comes
# before the month.
NAMED_MONTH_FORMS = "full long yMMMd yMMMEd MMMMd MMMd MMMEd".split()
# Exactly 100 years, so that two-digit years, as in "3/7/23", are unambiguous.
FIRST_DAY = date(1950, 1, 1).toordinal()
LAST_DAY = date(2049, 12, 31).toordinal()

# Values whose texts are compared (see `Form.probes`).
NUMBER_PROBES = tuple(
    map(Decimal, "1 2 3 5 7 11 12 21 100 101 1000 1234 12345 1.5 2.25".split())
)
DAY_PROBES = tuple(
    date(year, month, day)
    for month in range(1, 13)
    for year, day in ((2023, 7), (1999, 12), (2008, 30 if month != 2 else 28))
)
MOMENT_PROBES = tuple(
    datetime.combine(day, time(hour, 4)) for hour, day in enumerate(DAY_PROBES[:24])
)


class PhraseSplits(NamedTuple):
    """Lists of (source, target). No two lists share a source or a target."""

    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]


class Form(NamedTuple):
    """One way to write a value."""

    kind: str  # key of `WEIGHTS`
    draw: Callable  # `draw(random)` returns a value
    write: Callable  # `write(value, locale=locale)` returns its text
    probes: tuple = NUMBER_PROBES  # values that show whether two forms are the same
    write_source: Callable | None = None  # like `write`, which is the default


def phrases(
    source_locale: str = "en",
    target_locale: str = "de",
    size: int = 31_500,
    seed: int = 1,
    held_out: int = 500,
) -> PhraseSplits:
    """Draws phrases in two languages. Equal arguments give equal phrases.

    `train` also has names of countries, languages and currencies, without digits. Where
    CLDR uses no-break or thin spaces, the source has plain spaces, as people type. The
    target keeps the spaces of CLDR.

    Args:
        source_locale: Source language, as a locale such as `en`, `pt_BR` or `zh-Hant`.
        target_locale: Target language.
        size: Number of phrases with digits in all three lists together.
        seed: Seed of the phrases.
        held_out: Number of phrases in each of `validation` and `test`.

    Raises:
        DataError: If a locale is unknown, or `size` is at most twice `held_out`.
    """
    source = parse_locale("source_locale", source_locale)
    target = parse_locale("target_locale", target_locale)
    if not 0 <= 2 * held_out < size:
        raise DataError(
            "data.size must be more than twice data.held_out. "
            f"Received: data.size={size}, data.held_out={held_out}"
        )
    random = Random(seed)
    pairs = _draw_pairs(source, target, size, random)
    names = _bare_names(source, target, known=pairs)
    return _split(list(pairs.items()), names, held_out, random)


def parse_locale(argument: str, name: str) -> Locale:
    """Parses a locale name with `-` or `_`. The error message names `argument`."""
    try:
        return Locale.parse(str(name).replace("-", "_"))
    except (UnknownLocaleError, ValueError, TypeError) as error:
        raise DataError(
            f"data.{argument} must be a locale that Babel supports, such as "
            f"'en', 'de' or 'pt_BR'. Received: {name!r}"
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
    source: Locale, target: Locale, size: int, random: Random
) -> dict[str, str]:
    """Returns `size` different sources with a digit, each with its target."""
    by_kind = defaultdict(list)
    for form in select_forms(source, target):
        by_kind[form.kind].append(form)
    weights = [WEIGHTS[kind] for kind in by_kind]
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
            f"data.size must be at most about {len(pairs)} for {source} to {target}. "
            f"Received: data.size={size}"
        )
    return pairs


def _bare_names(source: Locale, target: Locale, known: dict[str, str]) -> list[Pair]:
    """Returns names in both languages, except those whose source text is in `known`."""
    currencies = [partial(numbers.get_currency_name, code, None) for code in CURRENCIES]
    names: dict[str, str] = {}
    for name in (*territory_and_language_names(), *currencies):
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
            or any(remaining[word] - words[word] < MIN_WORD_COUNT for word in words)
        ):
            part = train
        else:
            remaining.subtract(words)
        part.extend(group)
    if len(test) < held_out:
        raise DataError(
            "data.held_out must be small enough that each word of a held-out phrase "
            f"remains {MIN_WORD_COUNT} times in training. Received: data.held_out="
            f"{held_out}. Only {len(validation)} phrases for validation and "
            f"{len(test)} for testing can be held out"
        )
    for part in (train, validation, test):
        random.shuffle(part)
    return PhraseSplits(train, validation, test)


def draw_number(random: Random, max_digits: int, max_decimals: int, sign: int = 1):
    """Draws a number with at most `max_digits` integer digits.

    The integer part is below 10^n, where n is drawn uniformly from 1 to `max_digits`.
    """
    decimals = random.randint(0, max_decimals)
    integer_part = random.randrange(10 ** random.randint(1, max_digits))
    fraction = random.randrange(10**decimals)
    # Babel writes 1.0 as "1", but with another plural form of the word after it, so
    # trailing zeros are removed.
    while decimals and fraction % 10 == 0:
        decimals, fraction = decimals - 1, fraction // 10
    return sign * Decimal(integer_part * 10**decimals + fraction).scaleb(-decimals)


def draw_int(random: Random, low: int, high: int, factor: int) -> int:
    return factor * random.randint(low, high)


def draw_amount(random: Random, precision: int) -> Decimal:
    digits = random.randint(precision + 1, precision + 5)
    return Decimal(random.randrange(1, 10**digits)).scaleb(-precision)


def draw_day(random: Random) -> date:
    return date.fromordinal(random.randint(FIRST_DAY, LAST_DAY))


def draw_moment(random: Random) -> datetime:
    midnight = datetime.combine(draw_day(random), time())
    return midnight + timedelta(seconds=random.randrange(DAY))


def draw_date_interval(random: Random) -> tuple[date, date]:
    first = draw_day(random)
    return first, first + timedelta(days=random.randint(1, 40))


def draw_time_interval(random: Random) -> tuple[datetime, ...]:
    minutes = sorted(random.sample(range(0, 1440, 5), 2))
    return tuple(datetime(2023, 3, 7) + timedelta(minutes=each) for each in minutes)


def draw_year_interval(random: Random) -> tuple[date, ...]:
    return tuple(date(y, 1, 1) for y in sorted(random.sample(range(1900, 2100), 2)))


def hour_skeleton(locale: Locale) -> str:
    """Returns the skeleton `hm` if the locale has a 12-hour clock, else `Hm`."""
    # Quoted parts are literal text, such as the `h` of `HH 'h' mm`.
    pattern = re.sub(r"'[^']*'", "", locale.time_formats["short"].pattern)
    return "hm" if "h" in pattern or "K" in pattern else "Hm"


def write_weekday_time(moment: datetime, locale: Locale) -> str:
    return dates.format_skeleton("E" + hour_skeleton(locale), moment, locale=locale)


def write_percent(number: Decimal, locale: Locale) -> str:
    return numbers.format_percent(
        number / 100, locale=locale, decimal_quantization=False
    )


def write_currency_name(number: Decimal, code: str, locale: Locale) -> str:
    pattern = numbers.get_currency_unit_pattern(code, number, locale=locale)
    name = numbers.get_currency_name(code, number, locale=locale)
    if name == code:
        raise LookupError(f"no name for {code}")
    return pattern.format(numbers.format_decimal(number, locale=locale), name)


def write_relative(count: int, unit: str, locale: Locale) -> str:
    return dates.format_timedelta(
        timedelta(seconds=SECONDS[unit] * count),
        granularity=unit,
        # Babel would use a larger unit if the count in that unit reached the threshold.
        threshold=10**9,
        add_direction=True,
        locale=locale,
    )


def write_interval(ends: tuple, skeleton: str, locale: Locale) -> str:
    if skeleton == "time":
        skeleton = hour_skeleton(locale)
    return dates.format_interval(*ends, skeleton, locale=locale)


def write_share(number: Decimal, name: Callable, locale: Locale) -> str:
    return f"{name(locale)} ({write_percent(number, locale)})"


def write_date(day: date, style: str, locale: Locale) -> str:
    if style in DATE_STYLES:
        return dates.format_date(day, format=style, locale=locale)
    return dates.format_skeleton(style, day, locale=locale)


def write_day_first(day: date, style: str, locale: Locale) -> str:
    """Writes a date as international English does, such as "3 September 2021"."""
    text = write_date(day, style, Locale("en", "001"))
    if locale.language != "en" or text == write_date(day, style, locale):
        raise LookupError(f"no other order of dates in {locale}")
    return text


def territory_and_language_names() -> Iterator[Callable[[Locale], str]]:
    for code in TERRITORIES:
        yield lambda locale, code=code: locale.territories[code]
    for code in LANGUAGES:
        yield lambda locale, code=code: locale.languages[code]


def all_forms() -> Iterator[Form]:
    """Yields every form. If two write the same text, the earlier one is preferred."""
    for style in DATE_FORMS:
        yield Form("date", draw_day, partial(write_date, style=style), DAY_PROBES)
    for style in NAMED_MONTH_FORMS:
        write = partial(write_date, style=style)
        source = partial(write_day_first, style=style)
        yield Form("date", draw_day, write, DAY_PROBES, source)
    write = partial(write_date, style="medium")
    yield Form("date", draw_day, write, DAY_PROBES, lambda day, locale: str(day))

    for style in ("short", "medium"):
        write = partial(dates.format_time, format=style)
        yield Form("time", draw_moment, write, MOMENT_PROBES)
    yield Form("time", draw_moment, write_weekday_time, MOMENT_PROBES)

    for sign in (1, -1):
        draw = partial(draw_number, max_digits=7, max_decimals=3, sign=sign)
        probes = tuple(sign * probe for probe in NUMBER_PROBES)
        yield Form("number", draw, numbers.format_decimal, probes)
    draw = partial(draw_number, max_digits=3, max_decimals=2)
    yield Form("percent", draw, write_percent)

    # "1.2 million". The text has one decimal, so values are multiples of 0.1 million or
    # 0.1 billion. Adjacent probes show whether a locale writes them with the same text.
    write = partial(
        numbers.format_compact_decimal, format_type="long", fraction_digits=1
    )
    counts = (10, 15, 20, 110, 124, 998, 1234, 9989)
    for tenth in (10**5, 10**8):
        probes = tuple(tenth * (count + more) for count in counts for more in (0, 1, 2))
        draw = partial(draw_int, low=10, high=9999, factor=tenth)
        yield Form("compact", draw, write, probes)

    for code in CURRENCIES:  # "$12.50" and "12.5 US dollars"
        draw = partial(draw_amount, precision=numbers.get_currency_precision(code))
        yield Form("currency", draw, partial(numbers.format_currency, currency=code))
        draw = partial(draw_number, max_digits=5, max_decimals=1)
        yield Form("currency", draw, partial(write_currency_name, code=code))

    draw = partial(draw_number, max_digits=4, max_decimals=1)
    for unit in UNITS:
        for length in ("long", "short"):
            write = partial(units.format_unit, measurement_unit=unit, length=length)
            yield Form("unit", draw, write)

    for unit in SECONDS:  # "in 3 days" and "3 days ago"
        for sign in (1, -1):
            draw = partial(draw_int, low=1, high=120, factor=sign)
            probes = tuple(sign * count for count in (1, 2, 3, 5, 11, 21, 100))
            yield Form("relative", draw, partial(write_relative, unit=unit), probes)

    intervals = {"yMMMd": draw_date_interval, "time": draw_time_interval}
    for skeleton, draw in (intervals | {"y": draw_year_interval}).items():
        random = Random(7)  # a fixed seed, so that the probes are always the same
        probes = tuple(draw(random) for _ in range(19))
        write = partial(write_interval, skeleton=skeleton)
        yield Form("interval", draw, write, probes)

    # "Germany (12.5%)". The number varies, so a name in a held-out phrase occurs in
    # training as well.
    draw = partial(draw_number, max_digits=2, max_decimals=1)
    for name in territory_and_language_names():
        yield Form("name", draw, partial(write_share, name=name))
