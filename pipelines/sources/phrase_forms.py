"""Forms of the embedded phrases: how CLDR, through Babel, writes one value.

A `Form` draws a value and writes it in any locale, so the same value written in two
locales is a pair of sentences that mean the same.
"""

# ruff: noqa: SIM905 (codes read better in one string than as forty)

import datetime
import decimal
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from babel import Locale
from babel import dates
from babel import numbers
from babel import units

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
RELATIVE_UNITS = "second minute hour day week month year".split()

# Two-digit years are read as one century only, so that "3/7/23" has one meaning.
FIRST_DAY = datetime.date(1950, 1, 1).toordinal()
LAST_DAY = datetime.date(2049, 12, 31).toordinal()

# The first form that writes a text keeps it: see `phrases.unambiguous`.
DATE_FORMATS = ("full", "long", "short")
DATE_SKELETONS = (
    "yMMMd yMd yMMMEd MMMMd MMMd MMMEd yMMMM yMMM yQQQ yQQQQ yw medium"
).split()
SECONDS = {
    "second": 1,
    "minute": 60,
    "hour": 3600,
    "day": 86_400,
    "week": 7 * 86_400,
    "month": 30 * 86_400,
    "year": 365 * 86_400,
}


@dataclass(frozen=True)
class Form:
    """One way to write a value.

    Attributes:
        kind: what it writes; the forms of a kind share its part of the phrases.
        name: unique name, for example `date yMMMd`.
        draw: `draw(random)` gives a value.
        write: `write(value, locale)` gives its text in a locale.
        probes: values that show whether two forms write the same text.
    """

    kind: str
    name: str
    draw: Callable[[Random], Any]
    write: Callable[[Any, Locale], str]
    probes: tuple = ()


# The share of each kind among the phrases.
KIND_WEIGHTS = {
    "date": 26,
    "time": 10,
    "number": 14,
    "percent": 6,
    "compact": 4,
    "currency": 14,
    "unit": 16,
    "relative": 5,
    "interval": 6,
    "name": 8,
}


def draw_number(random: Random, max_digits: int, max_decimals: int) -> decimal.Decimal:
    """A number of 1 to `max_digits` digits before the point, sizes equally likely."""
    decimals = random.randint(0, max_decimals)
    whole = random.randrange(10 ** random.randint(1, max_digits))
    fraction = random.randrange(10**decimals)
    # Without zeros at the end: "1.0" is written "1", but takes another plural.
    while decimals and fraction % 10 == 0:
        decimals, fraction = decimals - 1, fraction // 10
    return decimal.Decimal(whole * 10**decimals + fraction).scaleb(-decimals)


def draw_day(random: Random) -> datetime.date:
    return datetime.date.fromordinal(random.randint(FIRST_DAY, LAST_DAY))


def draw_moment(random: Random) -> datetime.datetime:
    return datetime.datetime.combine(draw_day(random), datetime.time()) + (
        datetime.timedelta(seconds=random.randrange(86_400))
    )


NUMBER_PROBES = tuple(
    decimal.Decimal(text)
    for text in "1 2 3 5 7 11 12 21 100 101 1000 1234 12345 1.5 2.25".split()
)
DAY_PROBES = tuple(
    datetime.date(year, month, day)
    for month in range(1, 13)
    for year, day in ((2023, 7), (1999, 12), (2008, 30 if month != 2 else 28))
)
MOMENT_PROBES = tuple(
    datetime.datetime.combine(day, datetime.time(hour, 4, 0))
    for hour, day in enumerate(DAY_PROBES[:24])
)


def hour_skeleton(locale: Locale) -> str:
    """`hm` where the locale counts hours to 12, `Hm` where it counts to 24."""
    pattern = locale.time_formats["short"].pattern
    return "hm" if "h" in pattern or "K" in pattern else "Hm"


def write_date(style: str) -> Callable[[Any, Locale], str]:
    def write(moment, locale):
        if style in ("full", "long", "medium", "short"):
            return dates.format_date(moment, style, locale=locale)
        return dates.format_skeleton(style, moment, locale=locale)

    return write


def write_interval(skeleton: str) -> Callable[[Any, Locale], str]:
    def write(ends, locale):
        chosen = hour_skeleton(locale) if skeleton == "time" else skeleton
        return dates.format_interval(*ends, chosen, locale=locale)

    return write


def write_currency_name(code: str) -> Callable[[Any, Locale], str]:
    """`12.5 euros`: CLDR's pattern for a count and a currency's name."""

    def write(number, locale):
        pattern = numbers.get_currency_unit_pattern(code, number, locale=locale)
        name = numbers.get_currency_name(code, number, locale=locale)
        if name == code:
            raise LookupError(f"no name for {code}")
        return pattern.format(numbers.format_decimal(number, locale=locale), name)

    return write


def date_forms() -> Iterator[Form]:
    for style in (*DATE_FORMATS, *DATE_SKELETONS):
        yield Form("date", f"date {style}", draw_day, write_date(style), DAY_PROBES)


def time_forms() -> Iterator[Form]:
    for style in ("short", "medium"):
        yield Form(
            "time",
            f"time {style}",
            draw_moment,
            lambda moment, locale, style=style: dates.format_time(
                moment, style, locale=locale
            ),
            MOMENT_PROBES,
        )
    yield Form(
        "time",
        "time with weekday",
        draw_moment,
        lambda moment, locale: dates.format_skeleton(
            "E" + hour_skeleton(locale), moment, locale=locale
        ),
        MOMENT_PROBES,
    )


def number_forms() -> Iterator[Form]:
    def write(number, locale):
        return numbers.format_decimal(number, locale=locale)

    for sign, name in ((1, "number"), (-1, "negative number")):
        yield Form(
            "number",
            name,
            lambda random, sign=sign: sign * draw_number(random, 7, 3),
            write,
            tuple(sign * probe for probe in NUMBER_PROBES),
        )
    yield Form(
        "percent",
        "percent",
        lambda random: draw_number(random, 3, 2),
        lambda number, locale: numbers.format_percent(
            number / 100, locale=locale, decimal_quantization=False
        ),
        NUMBER_PROBES,
    )
    for power, name in ((6, "millions"), (9, "billions")):
        # One decimal at most, so that the text loses nothing of the number.
        yield Form(
            "compact",
            name,
            lambda random, power=power: 10 ** (power - 1) * random.randint(10, 9999),
            lambda number, locale: numbers.format_compact_decimal(
                number, format_type="long", locale=locale, fraction_digits=1
            ),
            # Neighbours show where a language's own scale loses a digit.
            tuple(
                10 ** (power - 1) * (n + more)
                for n in (10, 15, 20, 110, 124, 998, 1234, 9989)
                for more in (0, 1, 2)
            ),
        )


def currency_forms() -> Iterator[Form]:
    for code in CURRENCIES:
        precision = numbers.get_currency_precision(code)
        yield Form(
            "currency",
            f"currency {code}",
            lambda random, precision=precision: decimal.Decimal(
                random.randrange(1, 10 ** random.randint(precision + 1, precision + 5))
            ).scaleb(-precision),
            lambda number, locale, code=code: numbers.format_currency(
                number, code, locale=locale
            ),
            NUMBER_PROBES,
        )
        yield Form(
            "currency",
            f"currency name {code}",
            lambda random: draw_number(random, 5, 1),
            write_currency_name(code),
            NUMBER_PROBES,
        )


def unit_forms() -> Iterator[Form]:
    for unit in UNITS:
        for length in ("long", "short"):
            yield Form(
                "unit",
                f"unit {unit} {length}",
                lambda random: draw_number(random, 4, 1),
                lambda number, locale, unit=unit, length=length: units.format_unit(
                    number, unit, length=length, locale=locale
                ),
                NUMBER_PROBES,
            )


def relative_forms() -> Iterator[Form]:
    """`in 3 days`, `3 days ago`."""
    for unit in RELATIVE_UNITS:
        for sign, name in ((1, "in"), (-1, "ago")):
            yield Form(
                "relative",
                f"relative {unit} {name}",
                lambda random, sign=sign: sign * random.randint(1, 120),
                # A threshold out of reach keeps to the unit that was asked for.
                lambda count, locale, unit=unit: dates.format_timedelta(
                    datetime.timedelta(seconds=SECONDS[unit] * count),
                    granularity=unit,
                    threshold=10**9,
                    add_direction=True,
                    locale=locale,
                ),
                tuple(sign * count for count in (1, 2, 3, 5, 11, 21, 100)),
            )


def interval_forms() -> Iterator[Form]:
    def days(random):
        first = draw_day(random)
        return first, first + datetime.timedelta(days=random.randint(1, 40))

    def hours(random):
        minutes = sorted(random.sample(range(0, 1440, 5), 2))
        midnight = datetime.datetime(2023, 3, 7)
        return tuple(midnight + datetime.timedelta(minutes=m) for m in minutes)

    def years(random):
        first, last = sorted(random.sample(range(1900, 2100), 2))
        return datetime.date(first, 1, 1), datetime.date(last, 1, 1)

    for skeleton, draw in (("yMMMd", days), ("time", hours), ("y", years)):
        random = Random(7)
        yield Form(
            "interval",
            f"interval {skeleton}",
            draw,
            write_interval(skeleton),
            tuple(draw(random) for _ in range(19)),
        )


def name_writers() -> Iterator[tuple[str, Callable[[Locale], str]]]:
    """(code, function of a locale that gives the name) of countries and languages."""
    for code in TERRITORIES:
        yield f"territory {code}", lambda locale, code=code: locale.territories[code]
    for code in LANGUAGES:
        yield f"language {code}", lambda locale, code=code: locale.languages[code]


def name_forms() -> Iterator[Form]:
    """`Germany (12.5%)`: a name can be learnt where others hold it in training."""
    for code, name in name_writers():
        yield Form(
            "name",
            f"share of {code}",
            lambda random: draw_number(random, 2, 1),
            lambda number, locale, name=name: (
                f"{name(locale)} "
                + "({})".format(
                    numbers.format_percent(
                        number / 100, locale=locale, decimal_quantization=False
                    )
                )
            ),
            NUMBER_PROBES,
        )


def all_forms() -> Iterator[Form]:
    """Every form, the one to keep first where two write the same text."""
    yield from date_forms()
    yield from time_forms()
    yield from number_forms()
    yield from currency_forms()
    yield from unit_forms()
    yield from relative_forms()
    yield from interval_forms()
    yield from name_forms()


def all_names() -> Iterator[Callable[[Locale], str]]:
    """Functions of a locale that give a bare name: country, language, currency."""
    for _, name in name_writers():
        yield name
    for code in CURRENCIES:
        yield lambda locale, code=code: numbers.get_currency_name(code, locale=locale)
