"""Random inputs from hypothesis, with a count of their outcomes."""

from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keras_transformer.pipelines import lines

# Numbers of cases in default tests and in slow tests.
SHORT, LONG = 1_000, 100_000

# Texts that often cause errors in programs.
NASTY = [
    *("", " ", "\t", "\n", "\r", "\r\n", "\0", "a\0b", "\x1b[31m", "\x7f", "\x85"),
    *("\u2028", "\u2029", "\u200b", "\u200d", "\u200f", "\u202e", "\u2066", "\ufeff"),
    *("\ufffd", "\ufffe", "\uffff", "\ud800", "\udc80", "\udfff\ud800", "\U0010ffff"),
    *(
        "👩‍👩‍👧‍👦",
        "🇩🇪",
        "e\u0301\u0302\u0303",
        "ﷺ",
        "עברית",
        "漢字",
        "\u2581",
        "\uf8fe",
    ),
    *("<s>", "</s>", "<pad>", "<unk>", "<0x00>", "[UNK]", "[END]", "##", "\\ud800"),
    *("-LRB-", "(", ")", "\u00a0", "\u3000", "a" * 300, "ä" * 90, "\u0300" * 60),
]

# Any Unicode, including lone surrogates.
ANY_TEXT = st.lists(
    st.text(st.characters(), max_size=12) | st.sampled_from(NASTY), max_size=5
).map("".join)


def encodable(text):
    """Replaces lone surrogates, which UTF-8 cannot encode, with question marks."""
    return text.encode("utf-8", "replace").decode()


def is_text(content):
    """Returns whether bytes are a text file: LF or no CR, no NUL, no other format."""
    has_lines = b"\n" in content or b"\r" not in content[:-1]
    other = (*lines._COMPRESSED, *lines._BINARY, *lines._MARKS)
    is_other = content.startswith(other) or content.lstrip().startswith(lines._XML)
    return has_lines and not is_other and b"\0" not in content


def fuzz(strategy, check, count):
    """Calls `check` with `count` random cases. An exception fails the test.

    The cases are the same in every run if `count` is below `LONG`.

    Returns:
        `Counter` of the values that `check` returned.
    """
    outcomes = Counter()

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=count < LONG,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def run(case):
        outcomes[check(case)] += 1

    run()
    return outcomes


def describe_outcomes(outcomes):
    """Returns the counts of `fuzz` in one line, for the table of faults."""
    parts = ", ".join(f"{count:,} {name}" for name, count in outcomes.most_common())
    return f"{sum(outcomes.values()):,} cases: {parts}"
