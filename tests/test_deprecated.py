"""Import paths of version 0.1 still work, and their warnings name the new paths."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import prepared
import pytest

from keras_transformer._deprecated import MODULES
from keras_transformer._deprecated import NAMES
from keras_transformer._deprecated import successor
from keras_transformer.distributed.workers import Workers
from keras_transformer.evaluation.pair_filter import PairFilter

PUBLIC_NAMES = pathlib.Path(__file__).parent / "frozen" / "v1" / "public_names.txt"

# Names of version 0.1 that its reference did not list.
OTHER_NAMES = """
keras_transformer.corpus_filter: REASONS
keras_transformer.decoding.beam_search: NEVER
keras_transformer.decoding.rows: LINES_AT_ONCE CHARACTERS_AT_ONCE
keras_transformer.exported_model: open_saved_model
keras_transformer.layers.decoding_cache: SETTLE_STEPS take_slots slots_in_use
keras_transformer.recipes.schema: FilesData PhrasesData RecordsData TextPair TfdsData
keras_transformer.recipes.schema: TreePaths TreesData WeightedTreePaths
keras_transformer.stored_models: MODEL
"""

# Prints {path: list of warnings} for all modules and names. If a path cannot be loaded,
# or a moved module does not list a name, the error's text replaces the list.
LOAD = """
import importlib, json, os, pkgutil, sys, warnings
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras_transformer
from keras_transformer._deprecated import MODULES
warnings.simplefilter("error", DeprecationWarning)
warnings.filterwarnings("ignore", module="(?!__main__)")

def new_object(warning):
    new = str(warning.message).partition(" Use ")[2].strip("`.")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return pkgutil.resolve_name(new)

result = {}
for line in sys.stdin.read().splitlines():
    module, _, names = line.partition(":")
    try:
        loaded = importlib.import_module(module)
        result[module] = []
        unlisted = set()
        if names and module in MODULES:
            unlisted = set(names.split()) - set(dir(loaded))
        if unlisted:
            result[f"{module}.__all__"] = f"lacks {sorted(unlisted)}"
    except Exception as error:
        result[module] = repr(error)
        continue
    for name in names.split():
        path = f"{module}.{name}"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                value = getattr(loaded, name)
            except Exception as error:
                result[path] = repr(error)
                continue
        ours = [w for w in caught if "keras_transformer" in str(w.message)]
        result[path] = [str(w.message) for w in ours]
        for warning in ours:
            assert warning.filename == "<string>", (path, warning)
            assert new_object(warning) is value, (path, warning)
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def loaded():
    """Dict from each path of version 0.1 to its warnings, or to the text of an error.

    All paths are loaded in one fresh process.
    """
    lines = PUBLIC_NAMES.read_text("utf-8").splitlines()
    lines += OTHER_NAMES.split("\n")[1:-1]
    # `NAMES` and `MODULES` also contain paths that were not public.
    lines += [": ".join(old.rpartition(".")[::2]) for old in NAMES]
    lines += [f"{old}:" for old in MODULES]
    result = subprocess.run(
        [sys.executable, "-c", LOAD],
        input="\n".join(lines),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


def test_every_path_of_the_first_release_loads(loaded):
    assert len(loaded) > 300
    failed = {path: each for path, each in loaded.items() if isinstance(each, str)}
    assert failed == {}


def test_old_paths_warn_and_others_do_not(loaded):
    warned = 0
    for path, warnings in loaded.items():
        module = path.rpartition(".")[0]
        if path in NAMES or (module in MODULES and path not in MODULES):
            # A module that did not move may still have the name, without a warning.
            assert len(warnings) == 1 or module not in MODULES, path
            start = f"`{path}` is deprecated and will be removed in the next release."
            assert all(each.startswith(start) for each in warnings), warnings
            warned += len(warnings)
        else:
            assert warnings == [], path
    assert warned > 50


def test_successors_are_current_paths():
    for old in {**NAMES, **MODULES}:
        new = successor(old)
        assert new != old
        assert not {new, new.rpartition(".")[0]} & {*NAMES, *MODULES}


def test_moved_modules_no_longer_exist():
    root = pathlib.Path(__file__).resolve().parents[1]
    for old in MODULES:
        parts = old.split(".")
        path = root.joinpath(*parts[1 if parts[1] == "pipelines" else 0 :])
        assert not path.with_suffix(".py").exists(), old
        assert not (path / "__init__.py").exists(), old


def test_import_statement_warns_at_its_own_line(tmp_path):
    code = """
import warnings
warnings.simplefilter("ignore")
warnings.filterwarnings("error", "`keras_transformer", DeprecationWarning, "__main__")
try:
    from keras_transformer.models import open_model
except DeprecationWarning as warning:
    print(warning)
"""
    result = prepared.run(code, folder=tmp_path)
    assert result.stdout == (
        "`keras_transformer.models.open_model` is deprecated and will be removed in "
        "the next release. Use `keras_transformer.saving.open.open_model`.\n"
    ), result.stderr


def test_star_import_of_a_moved_module_gives_its_names(tmp_path):
    code = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from keras_transformer.pipelines.blocks import *
ours = [each for each in caught if "keras_transformer" in str(each.message)]
print(reservoir_sample is sample, "np" in globals(), {each.filename for each in ours})
print(any("pipelines.chunks.reservoir_sample" in str(each.message) for each in ours))
import keras_transformer.pipelines.blocks as old
print(sorted(old.__all__) == dir(old), {"blocks", "chunks"} <= set(dir(old)))
"""
    result = prepared.run(code, folder=tmp_path)
    assert result.stdout.splitlines() == [
        "True False {'<string>'}",
        "True",
        "True True",
    ], result.stderr


def test_unknown_names_are_attribute_errors(tmp_path):
    code = """
import keras_transformer.models, keras_transformer.training
for module in (keras_transformer.models, keras_transformer.training):
    print(hasattr(module, "absent"), hasattr(module, "__wrapped__"))
try:
    import keras_transformer.absent
except ModuleNotFoundError as error:
    print(error)
"""
    assert prepared.run(code, folder=tmp_path).stdout.splitlines() == [
        "False False",
        "False False",
        "No module named 'keras_transformer.absent'",
    ]


def test_old_methods_warn_and_work():
    workers = Workers.__new__(Workers)
    workers.count = 1
    with pytest.warns(DeprecationWarning, match="Workers.share.* `broadcast_from_ch"):
        assert workers.share(lambda: 7) == 7
    with pytest.warns(DeprecationWarning, match="Workers.total.*Use `all_reduce_sum`"):
        assert workers.total([1, 2]) == [1, 2]
    with pytest.warns(DeprecationWarning, match="Use `convert_worker_errors`"):
        context = workers.told_when_lost()
    with context:
        pass
    pair_filter = PairFilter(None)
    scores = np.array([-1.0, np.nan, -3.0], "float32")
    with pytest.warns(DeprecationWarning, match="Use `select_above`"):
        assert pair_filter.kept(scores, -2).tolist() == [True, False, False]
    with pytest.warns(DeprecationWarning, match="Use `select_best`"):
        passed, _ = pair_filter.best(scores, 0.5)
    assert passed.tolist() == [True, False, False]
    with pytest.warns(DeprecationWarning, match="Use `score`"):
        assert pair_filter.scores == pair_filter.score
