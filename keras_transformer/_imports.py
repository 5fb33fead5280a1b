"""Lazy submodules, and an import hook that runs functions after an import."""

import importlib
import sys


class _Loader:
    """Wrapper of a module loader that calls `action(module)` after loading."""

    def __init__(self, loader, action):
        self._loader = loader
        self._action = action

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def exec_module(self, module):
        self._loader.exec_module(module)
        self._action(module)


class _Finder:
    """Finder that wraps the loaders found by the later finders in `sys.meta_path`.

    Loaders are wrapped instead of modified, since pytest uses one loader for all
    modules. The finder stays installed after it has found a module, since the module is
    not always imported then: `importlib.util.find_spec` only finds it.

    Attributes:
        actions: Dict of module names to functions. Each function is called with the
            module after its import.
    """

    def __init__(self):
        self.actions = {}

    def find_spec(self, name, path=None, target=None):
        if name not in self.actions:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self.actions[name])
                return spec
        return None


_FINDER = _Finder()


def after_import(name, action):
    """Calls `action(module)` when the module `name` is imported.

    If the module is already imported, the action is called at once. Each module has one
    action: a later call replaces an action that has not been called yet.
    """
    if name in sys.modules:
        # `import_module` waits if another thread is still loading the module.
        action(importlib.import_module(name))
        return
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    _FINDER.actions[name] = action


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
