"""Training runs from recipes, which are files of settings, and the runs of Table 3."""

import importlib

_MODULES = (
    "average",
    "corpora",
    "cost",
    "curves",
    "plan",
    "repeat",
    "table3",
    "train",
    "vocabulary",
)


def __getattr__(name):
    # Imported on first use, so that importing one module does not load the others.
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *_MODULES})
