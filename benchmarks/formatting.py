"""Helpers for the tables and files of results."""

import csv
import pathlib

import numpy as np

from keras_transformer.files import replace_file
from keras_transformer.saving.info import markdown_table as table  # noqa: F401

RESULTS = pathlib.Path(__file__).resolve().parent / "results"


def write(path, text):
    """Replaces a file in one step."""
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_rows(path, rows):
    """Replaces a .csv file in one step."""
    with (
        replace_file(path) as temporary,
        open(temporary, "w", newline="", encoding="utf-8") as file,
    ):
        csv.writer(file, lineterminator="\n").writerows(rows)


def number(value):
    """Formats a rate with one decimal if it is below 100, else with none."""
    return f"{value:,.{1 if value < 100 else 0}f}"


def spread(values):
    """Formats a median with its range, given the result of `interleaved.summary`."""
    return "{} ({} to {})".format(
        *(number(values[name]) for name in ("median", "lowest", "highest"))
    )


def exponent(sizes, costs):
    """Returns the least-squares slope of log cost over log size.

    Returns `None` if there are fewer than two sizes.
    """
    if len(sizes) < 2:
        return None
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def upper_exponent(points):
    """Returns the exponent of (size, cost) points over the larger half of the sizes."""
    return exponent(*zip(*points[len(points) // 2 :], strict=True))
