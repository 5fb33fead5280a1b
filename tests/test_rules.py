"""Rules for the source: imports, sizes, names, errors, and the folders of tests."""

import ast
import pathlib
import subprocess
import sys

import pytest
from house import (
    LIBRARY,
    error_classes,
    is_within,
    long_files,
    long_functions,
    long_signatures,
    repeated_names,
    source_files,
    syntax_tree,
)
from source_imports import imports, lines_of_functions

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Per top-level module or subpackage: the others that it may import. These dependencies
# have no cycle.
ALLOWED = {
    "errors": set(),
    "progress": set(),
    "arguments": set(),
    "presets": {"arguments"},
    "numerics": set(),
    "files": {"errors"},
    "untrusted": {"errors"},
    "native_output": set(),
    "pipelines": {"errors", "files", "untrusted", "native_output"},
    "layers": {"arguments", "numerics"},
    "transformer": {"arguments", "layers", "numerics", "presets"},
    # Searches receive the model as an argument and never import it.
    "decoding": {"numerics", "layers", "errors"},
    "recipes": {"arguments", "presets", "pipelines", "errors", "files", "untrusted"},
    "evaluation": {"decoding", "errors"},
    "visualization": {"decoding", "errors"},
    "parsing": {"pipelines", "errors"},
    "saving": {
        *("transformer", "decoding", "recipes", "pipelines", "files", "errors"),
        *("untrusted", "arguments", "_imports"),
    },
    "conversion": {
        *("transformer", "saving", "recipes", "pipelines", "files", "untrusted"),
        "errors",
    },
    "training": {
        *("saving", "files", "progress", "untrusted", "errors"),
    },
    "distributed": {
        *("training", "saving", "pipelines", "files", "errors"),
        "_imports",
    },
    "export": {
        *("decoding", "numerics", "saving", "pipelines", "recipes", "files"),
        *("conversion", "errors", "untrusted"),
    },
    "serving": {"saving", "errors", "untrusted"},
    "experiments": {
        *("distributed", "training", "saving", "recipes", "pipelines", "parsing"),
        *("evaluation", "decoding", "transformer", "presets", "files", "errors"),
        *("untrusted", "arguments", "_imports"),
    },
}
# Imports inside functions that `ALLOWED` cannot list, because they close a cycle. The
# preset methods of the model, named as in KerasHub, read and write files. `open_model`
# opens exports, too.
ALLOWED_INSIDE_FUNCTIONS = {
    "presets": {"saving"},
    "saving": {"export"},
    "recipes": {"experiments"},
}
# The command line may import everything, including the package itself ("").
ALLOWED["cli"] = {*ALLOWED, ""}
ALLOWED["__main__"] = {"cli"}
# Only `__init__` modules import these.
ALLOWED["_imports"] = set()

# These modules use keras.ops only, so that they run on every Keras backend.
WITHOUT_TENSORFLOW = (
    "errors",
    "files",
    "native_output",
    "progress",
    "untrusted",
    "arguments",
    "presets",
    "numerics",
    "layers",
    "transformer",
    "decoding.alignment",
    "decoding.beam_search",
    "decoding.cache",
    "decoding.constraints",
    "decoding.ensemble",
    "decoding.forbidden",
    "decoding.incremental",
    "decoding.loop",
    "decoding.batches",
    "decoding.options",
    "decoding.sampling",
    "decoding.scoring",
    "decoding.search",
    "decoding.top_k",
    "recipes",
    "saving.names",
    "saving.keras_file",
    "saving.load",
    "saving.info",
    "saving.vocabularies",
    "training.losses",
    "training.metrics",
    "training.schedules",
    "experiments.folder",
    "experiments.machine",
    "experiments.report",
    "parsing.linearization",
    "parsing.treebank",
    "parsing.trees",
)
# The only module that may import keras.src: it patches `fit` for several workers.
PRIVATE_KERAS = ("distributed.multi_worker",)
# Errors outside errors.py: the server converts this one to an HTTP response.
OTHER_ERRORS = ("serving.limits.RequestError",)
# Test folders without a counterpart in the library. They cover several subpackages.
OTHER_TESTS = ("backends", "docs", "frozen", "reliability")
PICKLES = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}


def disallowed_dependencies(root):
    """Yields imports that `ALLOWED` does not list."""
    for name, path in source_files(root):
        if not name:
            continue  # the package's `__init__` imports modules on demand
        part = name.split(".")[0]
        if part not in ALLOWED:
            yield f"{path}: `{part}` has no entry in ALLOWED"
            continue
        inside_functions = lines_of_functions(path)
        for line, imported in imports(name, path):
            top, _, rest = imported.partition(".")
            other = rest.split(".")[0]
            if top == "pipelines":
                yield (
                    f"{path}:{line} imports {imported}: use {LIBRARY}.pipelines, "
                    "because another package may be named pipelines"
                )
            ours = {part, "__version__", *ALLOWED[part]}
            if line in inside_functions:
                ours |= ALLOWED_INSIDE_FUNCTIONS.get(part, set())
            if top == LIBRARY and other not in ours:
                yield f"{path}:{line} {part} imports {imported}"


def forbidden_imports(root):
    """Yields forbidden imports: TensorFlow, private Keras modules, pickle modules."""
    for name, path in source_files(root):
        for line, imported in imports(name, path):
            top = imported.split(".")[0]
            if is_within(name, WITHOUT_TENSORFLOW) and top.startswith("tensorflow"):
                yield f"{path}:{line} imports {imported}"
            if is_within(imported, ["keras.src"]) and not is_within(
                name, PRIVATE_KERAS
            ):
                yield f"{path}:{line} imports the private {imported}"
            if top in PICKLES:
                yield f"{path}:{line} imports {imported}: loading it runs code"


def forbidden_code(root):
    """Yields `allow_pickle=True`, `id`, and `print` in a constructor or at import."""
    for name, path in source_files(root):
        tree = syntax_tree(path)
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.keyword)
                and node.arg == "allow_pickle"
                and getattr(node.value, "value", None) is not False
            ):
                yield f"{path}:{node.value.lineno} allows pickles"
            if isinstance(node, ast.Name) and node.id == "id":
                yield f"{path}:{node.lineno} uses id: compare with `is`, or use a path"
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                yield from prints(path, ast.walk(node))
        if not name.startswith("cli"):
            loaded = (node.value for node in tree.body if isinstance(node, ast.Expr))
            yield from prints(path, loaded)


def prints(path, nodes):
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "print":
            yield f"{path}:{node.lineno} prints"


def scattered_errors(root):
    """Yields user errors outside of errors.py, or not derived from `UserError`."""
    classes = list(error_classes(root))
    ours = {node.name for name, _, node in classes if name == "errors"}
    for name, path, node in classes:
        bases = {ast.unparse(base) for base in node.bases}
        if node.name.startswith("_") or f"{name}.{node.name}" in OTHER_ERRORS:
            continue
        if name != "errors":
            yield f"{path}:{node.lineno} {node.name}: belongs in errors.py"
        elif node.name != "UserError" and not bases & ours:
            yield f"{path}:{node.lineno} {node.name}: not a UserError"


def folders_without_source(root):
    """Yields test folders that have no counterpart in the library."""
    for path in sorted((root / "tests").rglob("test_*.py")):
        folder = path.relative_to(root / "tests").parent
        source = root / folder if folder.parts[:1] == ("pipelines",) else None
        source = source or root / LIBRARY / folder
        if not source.is_dir() and str(folder) not in OTHER_TESTS:
            yield f"{path}: there is no folder {source}"


RULES = (
    disallowed_dependencies,
    forbidden_imports,
    forbidden_code,
    long_files,
    long_functions,
    long_signatures,
    repeated_names,
    scattered_errors,
    folders_without_source,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_source_follows_the_rule(rule):
    assert list(source_files(ROOT))
    assert list(rule(ROOT)) == []


def test_dependencies_have_no_cycle():
    """Modules can be sorted so that each imports only earlier ones."""
    below = {part: set(others) - {part, ""} for part, others in ALLOWED.items()}
    while below:
        free = {part for part, others in below.items() if not others & set(below)}
        assert free, f"a cycle among {sorted(below)}"
        below = {part: others for part, others in below.items() if part not in free}


# Signature with 13 parameters. A function may have 12.
MANY = ", ".join(f"a{i}" for i in range(13))


@pytest.mark.parametrize(
    ("rule", "path", "code"),
    [
        (
            disallowed_dependencies,
            "layers/a.py",
            "from keras_transformer.decoding import sample",
        ),
        (disallowed_dependencies, "layers/a.py", "from ..training import losses"),
        (disallowed_dependencies, "layers/a.py", "from .. import transformer"),
        (disallowed_dependencies, "layers/a.py", "import keras_transformer as kt"),
        (
            disallowed_dependencies,
            "transformer.py",
            "def f():\n    import keras_transformer.cli",
        ),
        (
            disallowed_dependencies,
            "../pipelines/a.py",
            "from keras_transformer import layers",
        ),
        (disallowed_dependencies, "../pipelines/a.py", "from .. import recipes"),
        (disallowed_dependencies, "cli/a.py", "import pipelines"),
        (
            disallowed_dependencies,
            "cli/a.py",
            "from keras_transformer import _imports",
        ),
        (
            disallowed_dependencies,
            "layers/a.py",
            "importlib.import_module('keras_transformer.saving')",
        ),
        (
            disallowed_dependencies,
            "presets.py",
            "import_module(f'keras_transformer.saving.{name}')",
        ),
        (disallowed_dependencies, "presets.py", "from .saving import load"),
        (disallowed_dependencies, "elsewhere/a.py", ""),
        (forbidden_imports, "layers/a.py", "import tensorflow as tf"),
        (forbidden_imports, "layers/a.py", "from tensorflow_text import Tokenizer"),
        (forbidden_imports, "training/losses.py", "from tensorflow import math"),
        (forbidden_imports, "cli/a.py", "from keras import src"),
        (forbidden_imports, "cli/a.py", "from keras.src.utils import tracking"),
        (forbidden_imports, "cli/a.py", "import pickle"),
        (forbidden_code, "cli/a.py", "load(file, allow_pickle=True)"),
        (forbidden_code, "cli/a.py", "known = set(map(id, weights))"),
        (
            forbidden_code,
            "layers/a.py",
            "class A:\n  def __init__(self):\n    print(1)",
        ),
        (forbidden_code, "layers/a.py", "print('loaded')"),
        (long_files, "layers/a.py", "x = 1\n" * 601),
        (long_functions, "layers/a.py", "def f():\n" + "    g()\n" * 60),
        (long_functions, "cli/a.py", "def f(a: int):\n" + "    g()\n" * 61),
        (long_signatures, "decoding/a.py", f"def f({MANY}): pass"),
        (long_signatures, "decoding/a.py", f"class A:\n  def __init__({MANY}): pass"),
        (long_signatures, "layers/a.py", f"def f({MANY}): pass"),
        (long_signatures, "cli/a.py", f"def f({MANY}): pass"),
        (scattered_errors, "decoding/a.py", "class A(ValueError): pass"),
        (scattered_errors, "errors.py", "class A(ValueError): pass"),
        (folders_without_source, "../tests/elsewhere/test_a.py", ""),
    ],
)
def test_rule_finds_a_violation(tmp_path, rule, path, code):
    file = tmp_path / LIBRARY / path
    (tmp_path / LIBRARY).mkdir()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(code + "\n", encoding="utf-8")
    found = list(rule(tmp_path))
    assert len(found) == 1, found
    assert file.name in found[0]
    assert not [
        problem for other in RULES if other != rule for problem in other(tmp_path)
    ]


def write(root, code):
    """Writes files, given as {path in the package: text}."""
    for path, text in code.items():
        (root / LIBRARY / path).parent.mkdir(parents=True, exist_ok=True)
        (root / LIBRARY / path).write_text(text, encoding="utf-8")


def test_rules_find_violations_across_files(tmp_path):
    write(
        tmp_path,
        {
            "errors.py": "class UserError(ValueError): pass",
            "layers/a.py": "X = 1\ndef f(): pass",
            "layers/b.py": "Y = X = 1\nclass f: pass",
            "saving/c.py": "class C(errors.UserError): pass",
        },
    )
    assert [each.partition(":")[0] for each in repeated_names(tmp_path)] == ["X", "f"]
    assert len(list(scattered_errors(tmp_path))) == 1


def test_rules_accept_valid_code(tmp_path):
    # Commands, recognized by their annotations, and layer constructors may have more
    # parameters than other functions.
    many = ", ".join(f"a{i}: int" for i in range(13))
    body = "    g()\n" * 59
    code = {
        "layers/a.py": "import keras\nfrom . import b\nfrom .b import c",
        "decoding/translator.py": "import tensorflow as tf\nfrom ..layers import a",
        "distributed/multi_worker.py": "from keras.src import distribute",
        "cli/a.py": "from keras_transformer.errors import DataError\nprint(1)",
        "cli/run.py": f"def run({many}):\n    'Run.'\n{body}",
        "layers/c.py": f"class A:\n  def __init__({many}): pass",
        "layers/d.py": f"_x = 1\ndef h():\n    'Text.'\n{body}",
        "saving/e.py": "logger = _x = 1\nclass _Stop(Exception): pass",
        "training/f.py": "logger = 1\ndef run(): pass",
        "serving/limits.py": "class RequestError(Exception): pass",
        "experiments/a.py": "from keras_transformer import __version__, training",
        "presets.py": "def f():\n    from .saving import load",
    }
    write(tmp_path, code)
    assert [problem for rule in RULES for problem in rule(tmp_path)] == []


@pytest.mark.parametrize(
    "name",
    [
        "distributed.workers.Workers",
        "experiments.average.average_run",
        "saving.open.open_model",
        "visualization.attention_of",
    ],
)
def test_public_modules_are_attributes_of_the_package(name):
    code = (
        f"import {LIBRARY} as kt; "
        f"assert {name.partition('.')[0]!r} in kt.__all__; "
        f"print(kt.{name}.__name__)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert result.stdout.strip() == name.rpartition(".")[2], result.stderr
