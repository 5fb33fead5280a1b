"""Forms of the embedded phrases: how CLDR, through Babel, writes one value.

A `Form` draws a value and writes it in any locale. The same value written in two
locales is a pair of sentences with the same meaning.
"""

# ruff: noqa: SIM905 (codes read better in one string than as forty)

from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from datetime import datetime
from datetime import time
from datetime import timedelta
from decimal import Decimal
from random import Random
from typing import Any

from babel import Locale
from babel import dates
from babel import numbers
from babel import units

Writer = Callable[[Any, Locale], str]

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
SECONDS = {
    "second": 1,
    "minute": 60,
    "hour": 3600,
    "day": 86_400,
    "week": 7 * 86_400,
    "month": 30 * 86_400,
    "year": 365 * 86_400,
}
# The first form that writes a text keeps it, see `phrases.select_forms`.
DATE_STYLES = ("full", "long", "short", "medium")
DATE_FORMS = (
    "full long short yMMMd yMd yMMMEd MMMMd MMMd MMMEd yMMMM yMMM yQQQ yQQQQ yw medium"
).split()

# Two-digit years belong to one century only, so that "3/7/23" has one meaning.
FIRST_DAY = date(1950, 1, 1).toordinal()
LAST_DAY = date(2049, 12, 31).toordinal()

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


@dataclass(frozen=True)
class Form:
    """One way to write a value.

    Attributes:
        kind: Key of `PHRASE_KINDS`. The forms of a kind share its part of the phrases.
        name: Unique name, such as `date yMMMd`.
        draw: `draw(random)` returns a value.
        write: `write(value, locale)` returns its text in a locale.
        probes: Values that show whether two forms write the same text.
    """

    kind: str
    name: str
    draw: Callable[[Random], Any]
    write: Writer
    probes: tuple = NUMBER_PROBES


def draw_number(random: Random, max_digits: int, max_decimals: int) -> Decimal:
    """Draws a number of 1 to `max_digits` digits before the point, sizes equally."""
    decimals = random.randint(0, max_decimals)
    whole = random.randrange(10 ** random.randint(1, max_digits))
    fraction = random.randrange(10**decimals)
    # Without trailing zeros: "1.0" is written "1", but has another plural.
    while decimals and fraction % 10 == 0:
        decimals, fraction = decimals - 1, fraction // 10
    return Decimal(whole * 10**decimals + fraction).scaleb(-decimals)


def draw_day(random: Random) -> date:
    return date.fromordinal(random.randint(FIRST_DAY, LAST_DAY))


def draw_moment(random: Random) -> datetime:
    midnight = datetime.combine(draw_day(random), time())
    return midnight + timedelta(seconds=random.randrange(86_400))


def number_drawer(max_digits: int, max_decimals: int, sign: int = 1):
    return lambda random: sign * draw_number(random, max_digits, max_decimals)


def int_drawer(low: int, high: int, factor: int = 1):
    return lambda random: factor * random.randint(low, high)


def babel_writer(function: Callable, *arguments, **options) -> Writer:
    """Returns a writer that calls a function of Babel with the value and locale."""
    return lambda value, locale: function(value, *arguments, locale=locale, **options)


def write_percent(number: Decimal, locale: Locale) -> str:
    return numbers.format_percent(
        number / 100, locale=locale, decimal_quantization=False
    )


def hour_skeleton(locale: Locale) -> str:
    """Returns `hm` if the locale has a 12-hour clock, else `Hm`."""
    pattern = locale.time_formats["short"].pattern
    return "hm" if "h" in pattern or "K" in pattern else "Hm"


def date_forms() -> Iterator[Form]:
    for style in DATE_FORMS:
        if style in DATE_STYLES:
            write = babel_writer(dates.format_date, style)
        else:
            write = _skeleton_writer(style)
        yield Form("date", f"date {style}", draw_day, write, DAY_PROBES)


def _skeleton_writer(skeleton: str) -> Writer:
    return lambda day, locale: dates.format_skeleton(skeleton, day, locale=locale)


def time_forms() -> Iterator[Form]:
    def write_weekday(moment, locale):
        return _skeleton_writer("E" + hour_skeleton(locale))(moment, locale)

    for name, write in (
        ("time short", babel_writer(dates.format_time, "short")),
        ("time medium", babel_writer(dates.format_time, "medium")),
        ("time with weekday", write_weekday),
    ):
        yield Form("time", name, draw_moment, write, MOMENT_PROBES)


def number_forms() -> Iterator[Form]:
    write = babel_writer(numbers.format_decimal)
    negative_probes = tuple(-probe for probe in NUMBER_PROBES)
    yield Form("number", "number", number_drawer(7, 3), write)
    yield Form(
        "number", "negative number", number_drawer(7, 3, -1), write, negative_probes
    )


def percent_forms() -> Iterator[Form]:
    yield Form("percent", "percent", number_drawer(3, 2), write_percent)


def compact_forms() -> Iterator[Form]:
    """Yields `1.2 million`."""
    write = babel_writer(
        numbers.format_compact_decimal, format_type="long", fraction_digits=1
    )
    for name, tenth in (("millions", 10**5), ("billions", 10**8)):
        # Neighbors show where a language's own scale loses a digit.
        probes = tuple(
            tenth * (count + more)
            for count in (10, 15, 20, 110, 124, 998, 1234, 9989)
            for more in (0, 1, 2)
        )
        # The text has one decimal, so more digits would be lost.
        yield Form("compact", name, int_drawer(10, 9999, tenth), write, probes)


def currency_forms() -> Iterator[Form]:
    """Yields `$12.50` and `12.5 US dollars`."""
    for code in CURRENCIES:
        precision = numbers.get_currency_precision(code)
        write = babel_writer(numbers.format_currency, code)
        yield Form("currency", f"currency {code}", _amount_drawer(precision), write)
        write = _currency_name_writer(code)
        yield Form("currency", f"currency name {code}", number_drawer(5, 1), write)


def _amount_drawer(precision: int):
    def draw(random):
        digits = random.randint(precision + 1, precision + 5)
        return Decimal(random.randrange(1, 10**digits)).scaleb(-precision)

    return draw


def _currency_name_writer(code: str) -> Writer:
    def write(number, locale):
        pattern = numbers.get_currency_unit_pattern(code, number, locale=locale)
        name = numbers.get_currency_name(code, number, locale=locale)
        if name == code:
            raise LookupError(f"no name for {code}")
        return pattern.format(numbers.format_decimal(number, locale=locale), name)

    return write


def unit_forms() -> Iterator[Form]:
    for unit in UNITS:
        for length in ("long", "short"):
            write = babel_writer(units.format_unit, unit, length=length)
            yield Form("unit", f"unit {unit} {length}", number_drawer(4, 1), write)


def relative_forms() -> Iterator[Form]:
    """Yields `in 3 days` and `3 days ago`."""
    for unit in SECONDS:
        for sign, name in ((1, "in"), (-1, "ago")):
            probes = tuple(sign * count for count in (1, 2, 3, 5, 11, 21, 100))
            draw, write = int_drawer(1, 120, sign), _relative_writer(unit)
            yield Form("relative", f"relative {unit} {name}", draw, write, probes)


def _relative_writer(unit: str) -> Writer:
    # Babel switches to a larger unit above the threshold, which is out of reach here.
    write = babel_writer(
        dates.format_timedelta, granularity=unit, threshold=10**9, add_direction=True
    )
    return lambda count, locale: write(timedelta(seconds=SECONDS[unit] * count), locale)


def interval_forms() -> Iterator[Form]:
    def draw_days(random):
        first = draw_day(random)
        return first, first + timedelta(days=random.randint(1, 40))

    def draw_times(random):
        minutes = sorted(random.sample(range(0, 1440, 5), 2))
        midnight = datetime(2023, 3, 7)
        return tuple(midnight + timedelta(minutes=minute) for minute in minutes)

    def draw_years(random):
        return tuple(date(y, 1, 1) for y in sorted(random.sample(range(1900, 2100), 2)))

    for skeleton, draw in (
        ("yMMMd", draw_days),
        ("time", draw_times),
        ("y", draw_years),
    ):
        random = Random(7)
        probes = tuple(draw(random) for _ in range(19))
        write = _interval_writer(skeleton)
        yield Form("interval", f"interval {skeleton}", draw, write, probes)


def _interval_writer(skeleton: str) -> Writer:
    def write(ends, locale):
        chosen = hour_skeleton(locale) if skeleton == "time" else skeleton
        return dates.format_interval(*ends, chosen, locale=locale)

    return write


def name_forms() -> Iterator[Form]:
    """Yields `Germany (12.5%)`. Other numbers let training show a held-out name."""
    for code, name in _name_writers():
        yield Form("name", f"share of {code}", number_drawer(2, 1), _share_writer(name))


def _share_writer(name: Callable[[Locale], str]) -> Writer:
    return lambda number, locale: f"{name(locale)} ({write_percent(number, locale)})"


def _name_writers() -> Iterator[tuple[str, Callable[[Locale], str]]]:
    """Yields codes of countries and languages, each with a writer of its name."""
    for code in TERRITORIES:
        yield f"territory {code}", lambda locale, code=code: locale.territories[code]
    for code in LANGUAGES:
        yield f"language {code}", lambda locale, code=code: locale.languages[code]


# The weight of each kind among the phrases, and its forms.
PHRASE_KINDS = {
    "date": (26, date_forms),
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
    """Yields every form, with the preferred one of two equal texts first."""
    for _, forms in PHRASE_KINDS.values():
        yield from forms()


def all_names() -> Iterator[Callable[[Locale], str]]:
    """Yields writers of bare names of countries, languages and currencies."""
    for _, name in _name_writers():
        yield name
    for code in CURRENCIES:
        yield lambda locale, code=code: numbers.get_currency_name(code, locale=locale)
