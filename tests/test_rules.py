"""Imports: which rooms of the package build on which, and which need no TensorFlow."""

import ast
import importlib
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIBRARY = "keras_transformer"

# Per top-level module or subpackage: the others that it may import, each of which is
# above it in this list.
ALLOWED = {
    "errors": set(),
    "progress": set(),
    "signals": set(),
    "arguments": set(),
    "sizes": {"arguments"},
    "machine": {"arguments"},
    "numerics": set(),
    "_imports": set(),
    "files": {"errors"},
    "untrusted": {"errors"},
    "native_output": set(),
    "pipelines": {
        *("errors", "files", "untrusted", "native_output", "signals", "_imports"),
    },
    "layers": {"arguments", "numerics"},
    "transformer": {"arguments", "layers", "numerics", "sizes"},
    # Searches receive the model as an argument and never import it.
    "decoding": {"numerics", "layers", "errors"},
    "recipes": {
        "arguments",
        "machine",
        "sizes",
        "pipelines",
        "errors",
        "files",
        "untrusted",
    },
    "evaluation": {"decoding", "errors"},
    "visualization": {"decoding", "errors"},
    "parsing": {"pipelines", "errors"},
    "saving": {
        *(
            "layers",
            "transformer",
            "decoding",
            "recipes",
            "pipelines",
            "files",
            "errors",
        ),
        *("untrusted", "arguments", "_imports"),
    },
    "training": {
        *("saving", "machine", "files", "progress", "signals", "untrusted", "errors"),
        "_imports",
    },
    "export": {
        *("decoding", "numerics", "saving", "pipelines", "recipes", "files", "errors"),
        *("untrusted", "native_output", "_imports"),
    },
    "interop": {
        *("export", "transformer", "saving", "decoding", "recipes", "pipelines"),
        *("numerics", "files", "untrusted", "arguments", "errors", "_imports"),
    },
    "opening": {"interop", "export", "saving", "decoding", "errors"},
    "documents": {"decoding", "errors"},
    "beam": {"export", "saving", "pipelines", "errors", "_imports"},
    "serving": {
        *("export", "decoding", "documents", "saving", "signals", "errors"),
        "untrusted",
    },
    "runs": {
        *("opening", "training", "interop", "saving", "recipes", "pipelines"),
        *("parsing", "layers"),
        *("evaluation", "decoding", "transformer", "sizes", "files", "errors"),
        *("untrusted", "arguments", "machine", "progress", "_imports"),
    },
}
# The command line may import everything.
ALLOWED["cli"] = {*ALLOWED, LIBRARY}
ALLOWED["__main__"] = {"cli"}
# The preset methods of the model read and write files, as `keras.Model.save` does.
EXCEPTIONS = {("transformer", "saving")}

# These modules use keras.ops only, so that they run on every Keras backend. One has
# shorter ways for TensorFlow.
SHORTER_WAYS = "numerics.indexing"
WITHOUT_TENSORFLOW = (
    *(
        "errors",
        "files",
        "native_output",
        "progress",
        "signals",
        "untrusted",
        "arguments",
    ),
    *("sizes", "numerics", "layers", "transformer", "decoding.alignment"),
    *("decoding.batches", "machine", "runs.report"),
    *("decoding.beam_search", "decoding.cache", "decoding.constraints"),
    *("decoding.ensemble", "decoding.forbidden", "decoding.incremental"),
    *("decoding.markup", "decoding.markup_parser", "decoding.spans"),
    *("decoding.glossary", "decoding.steering"),
    *("decoding.loop", "decoding.options", "decoding.required"),
    *("decoding.sampling", "decoding.scoring", "decoding.search"),
    *("decoding.top_k", "recipes", "saving.names"),
    *("saving.keras_file", "saving.load", "saving.info"),
    *("training.losses", "training.metrics", "training.schedules"),
    *("runs.folder", "parsing.linearization", "parsing.treebank"),
    "parsing.trees",
)


def imports():
    """Yields (module below the package, imported absolute name) of the library."""
    for folder, prefix in ((ROOT / LIBRARY, ()), (ROOT / "pipelines", ("pipelines",))):
        for path in folder.rglob("*.py"):
            parts = (*prefix, *path.relative_to(folder).with_suffix("").parts)
            name = ".".join(parts).removesuffix("__init__").removesuffix(".")
            package = [LIBRARY, *parts[:-1]]
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Import):
                    yield from ((name, alias.name) for alias in node.names)
                elif isinstance(node, ast.ImportFrom):
                    above = package[: len(package) - node.level + 1]
                    base = [*(above if node.level else ()), node.module]
                    base = ".".join(filter(None, base))
                    yield from ((name, f"{base}.{alias.name}") for alias in node.names)


def test_rooms_import_only_what_they_build_on():
    found = set()
    for name, imported in imports():
        room, (top, _, rest) = name.split(".")[0], imported.partition(".")
        other = rest.split(".")[0] or LIBRARY
        # The package's own `__init__` imports modules on demand.
        if room and top == LIBRARY and other not in {room, "__version__"}:
            found.add((room, other))
        # Another package may have the name of our folder at the top.
        assert top != "pipelines", f"{name} imports {imported}"
    allowed = {(room, other) for room, others in ALLOWED.items() for other in others}
    assert found - allowed - EXCEPTIONS == set()


def test_no_two_rooms_build_on_each_other():
    rooms = list(ALLOWED)
    for number, room in enumerate(rooms):
        assert {*rooms[number:]}.isdisjoint(ALLOWED[room]), room


def test_modules_for_all_backends_do_not_import_tensorflow():
    found = [
        f"{name} imports {imported}"
        for name, imported in imports()
        if imported.startswith("tensorflow")
        and name != SHORTER_WAYS
        and f"{name}.".startswith(tuple(f"{each}." for each in WITHOUT_TENSORFLOW))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("package", "name"),
    [
        (LIBRARY, "opening"),
        (LIBRARY, "visualization"),
        (f"{LIBRARY}.training", "workers"),
        (f"{LIBRARY}.runs", "average"),
    ],
)
def test_public_modules_are_attributes_of_the_package(package, name):
    # `getattr` would find a module that another test has imported.
    load = importlib.import_module(package).__getattr__
    assert load(name).__name__ == f"{package}.{name}"
