"""Training with several workers, and Apache Beam pipelines for large corpora."""

import importlib

_MODULES = ("corpus", "inference", "workers")


def __getattr__(name):
    # Imported on first use, so that importing one module does not load the others.
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *_MODULES})
