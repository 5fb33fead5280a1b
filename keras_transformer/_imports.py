"""Lazy submodules."""

import importlib
import sys


def lazy_modules(package, names):
    """Returns the `__getattr__` and `__dir__` of a package with lazy submodules.

    Importing one of the submodules then does not load the others.

    Args:
        package: Full name of the package.
        names: Names of the submodules to import on first use.
    """

    def import_module(name):
        if name in names:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def list_names():
        return sorted({*vars(sys.modules[package]), *names})

    return import_module, list_names
