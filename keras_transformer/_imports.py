"""Lazy names of packages."""

import importlib
import sys


def lazy_names(package, modules, names=()):
    """Returns the `__getattr__` and `__dir__` of a package that loads names on use.

    Importing one of its submodules then does not load the others. `names` maps names to
    the submodules that contain them.
    """

    def load(name):
        if name in names:
            return getattr(importlib.import_module(f"{package}.{names[name]}"), name)
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def list_names():
        return sorted({*vars(sys.modules[package]), *modules, *names})

    return load, list_names
