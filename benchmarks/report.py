"""Writes results as JSON for programs and as Markdown tables for people."""

import importlib.metadata
import json
import pathlib

import formatting
import tables

RESULTS = formatting.RESULTS
PACKAGES = ("tensorflow", "keras", "keras-hub", "torch", "ctranslate2", "numpy")


def versions():
    """Returns the versions of those `PACKAGES` that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def result_name(text):
    """Returns `text`, the name of result files in an option.

    Raises:
        ValueError: If `tables` cannot format results of this name.
    """
    tables.kind_of(text)
    return text


def write(folder, name, result):
    """Writes NAME.json and NAME.md to `folder` and prints the table."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # Written first, because a measurement takes much longer than formatting it again.
    formatting.write(folder / f"{name}.json", json.dumps(result, indent=1))
    text = tables.markdown(name, result)
    formatting.write(folder / f"{name}.md", text)
    print(text)
