"""Forms of phrases: ways to write a value, such as a date, in many languages.

A `Form` draws a random value and writes it in any locale. Babel writes the text with
data of the Unicode Common Locale Data Repository (CLDR). The same value written in two
locales is a pair of phrases with the same meaning.
"""

# ruff: noqa: SIM905 (codes read better in one string than in forty)

import re
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from random import Random
from typing import NamedTuple

from babel import Locale, dates, numbers, units

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
# of a date, such as year and month. If two forms write the same source text with
# different targets, only the first one is kept (see `phrases.select_forms`).
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


class Form(NamedTuple):
    """One way to write a value.

    Attributes:
        kind: Key of `PHRASE_KINDS`.
        draw: `draw(random)` returns a value.
        write: `write(value, locale=locale)` returns its text in a locale.
        probes: Values that show whether two forms write the same text.
        write_source: Like `write`, for the source text. If `None`, `write` is used.
    """

    kind: str
    draw: Callable
    write: Callable
    probes: tuple = NUMBER_PROBES
    write_source: Callable | None = None


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
    midnight = datetime(2023, 3, 7)
    return tuple(midnight + timedelta(minutes=minute) for minute in minutes)


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
    """Writes a date as international English does, such as "3 September 2021".

    Raises:
        LookupError: If the locale is not English or already writes the day first.
    """
    text = write_date(day, style, Locale("en", "001"))
    if locale.language != "en" or text == write_date(day, style, locale):
        raise LookupError(f"no other order of dates in {locale}")
    return text


def write_iso_date(day: date, locale: Locale) -> str:
    return day.isoformat()


def date_forms() -> Iterator[Form]:
    for style in DATE_FORMS:
        write = partial(write_date, style=style)
        yield Form("date", draw_day, write, DAY_PROBES)
    for style in NAMED_MONTH_FORMS:
        write = partial(write_date, style=style)
        source = partial(write_day_first, style=style)
        yield Form("date", draw_day, write, DAY_PROBES, source)
    write = partial(write_date, style="medium")
    yield Form("date", draw_day, write, DAY_PROBES, write_iso_date)


def time_forms() -> Iterator[Form]:
    for style in ("short", "medium"):
        write = partial(dates.format_time, format=style)
        yield Form("time", draw_moment, write, MOMENT_PROBES)
    yield Form("time", draw_moment, write_weekday_time, MOMENT_PROBES)


def number_forms() -> Iterator[Form]:
    for sign in (1, -1):
        draw = partial(draw_number, max_digits=7, max_decimals=3, sign=sign)
        probes = tuple(sign * probe for probe in NUMBER_PROBES)
        yield Form("number", draw, numbers.format_decimal, probes)


def percent_forms() -> Iterator[Form]:
    draw = partial(draw_number, max_digits=3, max_decimals=2)
    yield Form("percent", draw, write_percent)


def compact_forms() -> Iterator[Form]:
    """Yields forms such as `1.2 million`."""
    write = partial(
        numbers.format_compact_decimal, format_type="long", fraction_digits=1
    )
    # The text has one decimal, so values are multiples of 0.1 million or 0.1 billion.
    for tenth in (10**5, 10**8):
        # Adjacent values show whether a locale writes two of them with the same text.
        probes = tuple(
            tenth * (count + more)
            for count in (10, 15, 20, 110, 124, 998, 1234, 9989)
            for more in (0, 1, 2)
        )
        draw = partial(draw_int, low=10, high=9999, factor=tenth)
        yield Form("compact", draw, write, probes)


def currency_forms() -> Iterator[Form]:
    """Yields forms such as `$12.50` and `12.5 US dollars`."""
    for code in CURRENCIES:
        precision = numbers.get_currency_precision(code)
        draw = partial(draw_amount, precision=precision)
        yield Form("currency", draw, partial(numbers.format_currency, currency=code))
        draw = partial(draw_number, max_digits=5, max_decimals=1)
        yield Form("currency", draw, partial(write_currency_name, code=code))


def unit_forms() -> Iterator[Form]:
    draw = partial(draw_number, max_digits=4, max_decimals=1)
    for unit in UNITS:
        for length in ("long", "short"):
            write = partial(units.format_unit, measurement_unit=unit, length=length)
            yield Form("unit", draw, write)


def relative_forms() -> Iterator[Form]:
    """Yields forms such as `in 3 days` and `3 days ago`."""
    for unit in SECONDS:
        for sign in (1, -1):
            draw = partial(draw_int, low=1, high=120, factor=sign)
            probes = tuple(sign * count for count in (1, 2, 3, 5, 11, 21, 100))
            yield Form("relative", draw, partial(write_relative, unit=unit), probes)


def interval_forms() -> Iterator[Form]:
    drawers = {
        "yMMMd": draw_date_interval,
        "time": draw_time_interval,
        "y": draw_year_interval,
    }
    for skeleton, draw in drawers.items():
        random = Random(7)  # a fixed seed, so that the probes are always the same
        probes = tuple(draw(random) for _ in range(19))
        write = partial(write_interval, skeleton=skeleton)
        yield Form("interval", draw, write, probes)


def name_forms() -> Iterator[Form]:
    """Yields forms such as `Germany (12.5%)`.

    The number varies, so a name in a held-out phrase occurs in training as well.
    """
    draw = partial(draw_number, max_digits=2, max_decimals=1)
    for name in territory_and_language_names():
        yield Form("name", draw, partial(write_share, name=name))


def territory_and_language_names() -> Iterator[Callable[[Locale], str]]:
    for code in TERRITORIES:
        yield lambda locale, code=code: locale.territories[code]
    for code in LANGUAGES:
        yield lambda locale, code=code: locale.languages[code]


# For each kind, its relative frequency among the phrases, and its forms.
PHRASE_KINDS = {
    "date": (32, date_forms),
    "time": (10, time_forms),
    "number": (14, number_forms),
    "percent": (6, percent_forms),
    "compact": (4, compact_forms),
    "currency": (14, currency_forms),
    "unit": (16, unit_forms),
    "relative": (5, relative_forms),
    "interval": (6, interval_forms),
    "name": (8, name_forms),
}


def all_forms() -> Iterator[Form]:
    """Yields every form. If two write the same text, the earlier one is preferred."""
    for _, forms in PHRASE_KINDS.values():
        yield from forms()


def all_names() -> Iterator[Callable[[Locale], str]]:
    """Yields functions that write the names of countries, languages and currencies."""
    yield from territory_and_language_names()
    for code in CURRENCIES:
        yield partial(numbers.get_currency_name, code, None)
