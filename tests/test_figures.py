"""Numbers that several pages repeat agree, and rates in sentences were measured."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
NUMBER = r"(\d[\d,]*(?:\.\d+)?|two|three|five|ten)"
DURATION = rf"((?:about |at most )*){NUMBER} (s|seconds|min|minutes|hours)\b"
SECONDS = {"s": 1, "seconds": 1, "min": 60, "minutes": 60, "hours": 3600}
WORDS = {"two": 2, "three": 3, "five": 5, "ten": 10}

EN_DE = r"English to German, (?:lowercased and )?tokenized\b"
EN_FR = r"English to French\b"
# Name and pattern of each repeated number. A match is within one line, and all matches
# of a pattern must agree.
FIGURES = {
    "duration of the quick start": rf"(?:\bIn|export and serve in) {DURATION}",
    "BLEU, English to German, tokenized": rf"{EN_DE}.*?\*\*(\d\d\.\d+)\*\*",
    "BLEU, English to German, plain text": (
        r"English to German, plain text.*?\*\*(\d\d\.\d+)\*\*"
    ),
    "BLEU, English to French": rf"{EN_FR}.*?\*\*(\d\d\.\d+)\*\*",
    "minutes, English to German, tokenized": rf"{EN_DE}.*?\| {DURATION}",
    "minutes, Tatoeba": rf"(?:Tatoeba English to German.*, |pairs in ){DURATION}",
    "minutes, CRAFT": r"(?:CRAFT's .*?(?=\d+ min)|recipe, 26,000 steps \| )(\d+)",
    "minutes, English to French": rf"{EN_FR}(?:.*\*\*.*?\| |.*captions, ){DURATION}",
}
# A rate in a sentence, e.g. "700 tokens per second".
RATE = re.compile(
    rf"{NUMBER} (captions|sentences|lines|pairs|(?:target )?tokens)"
    r"(?: a | per |/)s(?:econd)?\b"
)


def texts():
    """Returns {path: text} of every page, command and recipe."""
    paths = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    package = ROOT / "keras_transformer"
    paths += [*(package / "cli").glob("*.py"), *(package / "recipes").glob("*.yaml")]
    return {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
        for path in sorted(paths)
    }


def value_of(groups):
    """Returns the value of a match (durations in seconds) and whether it is rounded."""
    if len(groups) == 1:
        about, number, unit = "", groups[0], "s"
    else:
        about, number, unit = groups
    value = WORDS.get(number) or float(number.replace(",", ""))
    return value * SECONDS[unit], bool(about)


def contradictions(pages):
    """Returns one line for each value that contradicts the first of its figure."""
    found = []
    for name, pattern in FIGURES.items():
        values = [
            (*value_of(match.groups()), f"{page}: {match[0]}")
            for page, text in pages.items()
            for match in re.finditer(pattern, text)
        ]
        for (value, about, place), (other, other_about, other_place) in pairs(values):
            # "About 80 minutes" agrees with 85.
            tolerance = 0.15 if about or other_about else 0
            if abs(value - other) > tolerance * max(value, other):
                found.append(f"{name}: {place!r} and {other_place!r}")
    return found


def pairs(values):
    """Pairs the first value with each of the others."""
    return [(values[0], each) for each in values[1:]]


def unmeasured_rates(pages, tables):
    """Returns the rates in sentences whose number is in no table of results."""
    measured = set(re.findall(r"\d[\d,]*(?:\.\d+)?", tables))
    return [
        f"{page}: {match[0]}"
        for page, text in pages.items()
        for line in sentences(text)
        for match in RATE.finditer(line)
        if match[1] not in measured
    ]


def sentences(text):
    """Yields paragraphs without tables and code, with line breaks removed."""
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
    for paragraph in text.split("\n\n"):
        yield " ".join(paragraph.split())


def measured_tables():
    return "".join(path.read_text("utf-8") for path in sorted(RESULTS.glob("*.md")))


def test_figures_do_not_contradict_each_other():
    assert contradictions(texts()) == []


@pytest.mark.parametrize("figure", FIGURES)
def test_figure_is_repeated(figure):
    """Guards the test above, which cannot fail for a number that occurs only once."""
    found = [re.search(FIGURES[figure], text) for text in texts().values()]
    assert sum(match is not None for match in found) > 1


def test_rates_in_sentences_are_measured():
    assert unmeasured_rates(texts(), measured_tables()) == []


@pytest.mark.parametrize(
    "first, second, number",
    [
        ("In five minutes you will train", "export and serve in 85 s.", 1),
        ("In five minutes you will train", "export and serve in 300 seconds.", 0),
        ("English to French | **60.34** | 85 min", "English to French: **60.35**", 1),
        (
            "English to French | **60.34** | 85 min",
            "# English to French: 29,000 captions, about 80 minutes",
            0,
        ),
    ],
)
def test_contradictions_compares_values(first, second, number):
    assert len(contradictions({"a.md": first, "b.md": second})) == number


def test_unmeasured_rates_finds_numbers_without_a_table():
    page = "It reads 620 target tokens\na second, and 1,065 tokens per second there.\n"
    page += "\n| 630 tokens/s |\n\n```\n640 tokens/s\n```\n"
    assert unmeasured_rates({"a.md": page}, "| base | 1,065 (1,060-1,070) |") == [
        "a.md: 620 target tokens a second"
    ]
