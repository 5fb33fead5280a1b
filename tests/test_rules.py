"""The rules of the house, read from the source: who imports what, and file sizes."""

import ast
import pathlib
import subprocess
import sys
import tokenize

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIBRARY = "keras_transformer"
MAX_LINES = 400

# What each part may import from the others: arrows run one way.
ALLOWED = {
    "errors": set(),
    "presets": set(),
    "numerics": set(),
    "files": {"errors"},
    "pipelines": {"errors"},
    "layers": {"numerics"},
    "transformer": {"layers", "presets"},
    # A search is given the model and never imports it.
    "decoding": {"numerics", "layers", "errors"},
    "recipes": {"presets", "errors", "files"},
    "evaluation": {"decoding", "errors"},
    "visualization": {"decoding", "errors"},
    "parsing": {"pipelines", "errors"},
    "saving": {
        *("transformer", "decoding", "recipes", "pipelines", "files", "errors"),
    },
    "training": {"saving", "files", "errors"},
    "distributed": {"training", "saving", "pipelines", "files", "errors"},
    "export": {
        *("decoding", "numerics", "saving", "pipelines", "recipes", "files"),
        "errors",
    },
    "serving": {"saving", "errors"},
    "experiments": {
        *("distributed", "training", "saving", "recipes", "pipelines", "parsing"),
        *("evaluation", "decoding", "transformer", "presets", "files", "errors"),
    },
}
# The outer edge may import everything, the package itself ("") too.
ALLOWED["cli"] = {*ALLOWED, ""}
# Only the package's `__init__` imports these.
ALLOWED |= {"_imports": set(), "_registration": {"_imports"}}
ALLOWED["_deprecated"] = {"_imports"}

# keras.ops only, so that it runs on every Keras backend.
WITHOUT_TENSORFLOW = (
    "errors",
    "files",
    "presets",
    "numerics",
    "layers",
    "transformer",
    "decoding.alignment",
    "decoding.beam_search",
    "decoding.constraints",
    "decoding.ensemble",
    "decoding.forbidden",
    "decoding.length_penalty",
    "decoding.loop",
    "decoding.batches",
    "decoding.sampling",
    "decoding.scoring",
    "decoding.search",
    "decoding.segments",
    "decoding.top_k",
    "recipes",
    "saving.names",
    "saving.keras_file",
    "saving.load",
    "saving.info",
    "training.losses",
    "training.metrics",
    "training.schedules",
    "experiments.folder",
)
# The file that mends Keras's multi-worker fit, and says why.
PRIVATE_KERAS = ("distributed.multi_worker",)
PICKLES = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}


def source_files(root):
    """(dotted name without the library's own, path) of every module of the library."""
    for folder, prefix in ((root / LIBRARY, ()), (root / "pipelines", ("pipelines",))):
        for path in sorted(folder.rglob("*.py")):
            parts = (*prefix, *path.relative_to(folder).with_suffix("").parts)
            if parts[-1] == "__init__":
                parts = parts[:-1]
            yield ".".join(parts), path


def syntax_tree(path):
    with tokenize.open(path) as file:
        return ast.parse(file.read(), str(path))


def imports(name, path):
    """(line, absolute dotted name) of every import, those in functions too."""
    full = ".".join(filter(None, (LIBRARY, name)))
    package = full.split(".") if path.name == "__init__.py" else full.split(".")[:-1]
    for node in ast.walk(syntax_tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            up = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*up, *filter(None, [node.module])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def within(name, modules):
    return any(name == module or name.startswith(module + ".") for module in modules)


def broken_arrows(root):
    for name, path in source_files(root):
        if not name:
            continue  # the package itself only loads on demand
        part = name.split(".")[0]
        if part not in ALLOWED:
            yield f"{path}: `{part}` has no entry in ALLOWED"
            continue
        for line, imported in imports(name, path):
            top, _, rest = imported.partition(".")
            other = rest.split(".")[0]
            if top == "pipelines":
                yield f"{path}:{line} imports {imported}: the name is not ours"
            ours = {part, "__version__", *ALLOWED[part]}
            if top == LIBRARY and other not in ours:
                yield f"{path}:{line} {part} imports {imported}"


def forbidden_imports(root):
    for name, path in source_files(root):
        for line, imported in imports(name, path):
            top = imported.split(".")[0]
            if within(name, WITHOUT_TENSORFLOW) and top.startswith("tensorflow"):
                yield f"{path}:{line} imports {imported}"
            if within(imported, ["keras.src"]) and not within(name, PRIVATE_KERAS):
                yield f"{path}:{line} imports the private {imported}"
            if top in PICKLES:
                yield f"{path}:{line} imports {imported}: loading it runs code"


def hidden_calls(root):
    """`allow_pickle=True` anywhere; `print` in a constructor or while importing."""
    for name, path in source_files(root):
        tree = syntax_tree(path)
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.keyword)
                and node.arg == "allow_pickle"
                and getattr(node.value, "value", None) is not False
            ):
                yield f"{path}:{node.value.lineno} allows pickles"
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                yield from prints(path, ast.walk(node))
        if not name.startswith("cli"):
            loaded = (node.value for node in tree.body if isinstance(node, ast.Expr))
            yield from prints(path, loaded)


def prints(path, nodes):
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "print":
            yield f"{path}:{node.lineno} prints"


def long_files(root):
    for folder in (LIBRARY, "pipelines", "tests", "benchmarks"):
        for path in sorted((root / folder).rglob("*.py")):
            lines = len(path.read_bytes().splitlines())
            if lines > MAX_LINES:
                yield f"{path}: {lines} lines"


RULES = (broken_arrows, forbidden_imports, hidden_calls, long_files)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_source_keeps_the_rule(rule):
    assert list(source_files(ROOT))
    assert list(rule(ROOT)) == []


def test_arrows_without_a_circle():
    """Each part can be laid below those that import it."""
    below = {part: set(others) - {part, ""} for part, others in ALLOWED.items()}
    while below:
        free = {part for part, others in below.items() if not others & set(below)}
        assert free, f"a circle among {sorted(below)}"
        below = {part: others for part, others in below.items() if part not in free}


@pytest.mark.parametrize(
    ("rule", "path", "code"),
    [
        (broken_arrows, "layers/a.py", "from keras_transformer.decoding import sample"),
        (broken_arrows, "layers/a.py", "from ..training import losses"),
        (broken_arrows, "layers/a.py", "from .. import transformer"),
        (broken_arrows, "layers/a.py", "import keras_transformer as kt"),
        (broken_arrows, "transformer.py", "def f():\n    import keras_transformer.cli"),
        (broken_arrows, "../pipelines/a.py", "from keras_transformer import layers"),
        (broken_arrows, "../pipelines/a.py", "from .. import recipes"),
        (broken_arrows, "cli/a.py", "import pipelines"),
        (broken_arrows, "cli/a.py", "from keras_transformer import _deprecated"),
        (broken_arrows, "elsewhere/a.py", ""),
        (forbidden_imports, "layers/a.py", "import tensorflow as tf"),
        (forbidden_imports, "layers/a.py", "from tensorflow_text import Tokenizer"),
        (forbidden_imports, "training/losses.py", "from tensorflow import math"),
        (forbidden_imports, "cli/a.py", "from keras import src"),
        (forbidden_imports, "cli/a.py", "from keras.src.utils import tracking"),
        (forbidden_imports, "cli/a.py", "import pickle"),
        (hidden_calls, "cli/a.py", "load(file, allow_pickle=True)"),
        (hidden_calls, "layers/a.py", "class A:\n  def __init__(self):\n    print(1)"),
        (hidden_calls, "layers/a.py", "print('loaded')"),
        (long_files, "layers/a.py", "x = 1\n" * 401),
    ],
)
def test_a_broken_rule_is_found(tmp_path, rule, path, code):
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


def test_what_the_rules_allow(tmp_path):
    code = {
        "layers/a.py": "import keras\nfrom . import b\nfrom .b import c",
        "decoding/translator.py": "import tensorflow as tf\nfrom ..layers import a",
        "distributed/multi_worker.py": "from keras.src import distribute",
        "cli/a.py": "from keras_transformer.errors import DataError\nprint(1)",
        "experiments/a.py": "from keras_transformer import __version__, training",
    }
    for path, text in code.items():
        (tmp_path / LIBRARY / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / LIBRARY / path).write_text(text, encoding="utf-8")
    assert [problem for rule in RULES for problem in rule(tmp_path)] == []


@pytest.mark.parametrize("module", ["", ".cli", ".recipes"])
def test_help_and_recipes_load_no_tensorflow(module):
    code = (
        f"import {LIBRARY}{module}, sys; "
        "print({'tensorflow', 'keras', 'torch', 'jax'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert result.stdout.strip() == "set()", result.stderr
