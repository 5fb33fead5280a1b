"""Imports scripts from the folder `benchmarks`, which is not a package."""

import importlib
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "benchmarks"


def load_script(name):
    """Imports `benchmarks/<name>.py` and returns its module."""
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))
