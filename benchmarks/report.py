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


def write(folder, name, result):
    """Writes NAME.json and NAME.md to `folder` and prints the table."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = tables.markdown(name, result)
    formatting.write(folder / f"{name}.json", json.dumps(result, indent=1))
    formatting.write(folder / f"{name}.md", text)
    print(text)
