"""`after_import` runs an action once, as soon as a module has been imported."""

import importlib.util
import sys
import threading

import pytest

from keras_transformer._imports import after_import


class SharedLoader:
    """A finder that is also the loader of its modules, as pytest's import hook is."""

    def __init__(self, *names):
        self.names = names
        self.failures = 0

    def find_spec(self, name, path=None, target=None):
        if name in self.names:
            return importlib.util.spec_from_loader(name, self)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        if self.failures:
            self.failures -= 1
            raise ImportError("not now")
        module.done = True


@pytest.fixture
def loader(monkeypatch):
    """Finder of the new modules `first_module` and `second_module`."""
    loader = SharedLoader("first_module", "second_module")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, loader])
    yield loader
    for name in loader.names:
        sys.modules.pop(name, None)


@pytest.fixture
def seen(loader):
    """List of (module, `module.done`), one per call of the action of `first_module`."""
    seen = []
    after_import("first_module", lambda module: seen.append((module, module.done)))
    return seen


def test_action_runs_once_after_the_module(seen):
    assert seen == []
    import first_module
    import second_module  # noqa: F401

    importlib.import_module("first_module")
    assert seen == [(first_module, True)]


def test_action_runs_at_once_for_a_loaded_module(loader):
    import first_module

    seen = []
    after_import("first_module", seen.append)
    assert seen == [first_module]


def test_search_without_import_keeps_the_action(seen, loader):
    for _ in range(2):
        assert importlib.util.find_spec("first_module").loader.names == loader.names
    assert seen == []
    import first_module  # noqa: F401

    assert len(seen) == 1


def test_failed_import_keeps_the_action(seen, loader):
    loader.failures = 1
    with pytest.raises(ImportError, match="not now"):
        importlib.import_module("first_module")
    assert seen == []
    importlib.import_module("first_module")
    assert len(seen) == 1


def test_missing_module_stays_missing():
    after_import("missing_module", print)
    assert importlib.util.find_spec("missing_module") is None


def test_threads_share_one_action(seen):
    threads = [
        threading.Thread(target=importlib.import_module, args=["first_module"])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 1
