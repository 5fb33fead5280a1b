"""Layers, model, losses, and searches give the expected results on each backend.

Keras reads its backend once per process, so each backend has its own process. A model
file written by this process, on TensorFlow, must load on every backend.
"""

import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import runs_on_backend as runs
import training_on_backend as training
import translator_on_backend
from characters import Characters, characters_model
from layer_checks import numpy, randomize
from small_transformers import built

from keras_transformer.pipelines import encode_corpus, train_tokenizer
from keras_transformer.transformer import Transformer

# The other backends are in the extra `backends`.
pytestmark = pytest.mark.backends
TESTS = pathlib.Path(__file__).resolve().parents[1]
# The TensorFlow case is a slow test, since all other tests run on TensorFlow anyway.
BACKENDS = pytest.mark.parametrize(
    "backend", [pytest.param("tensorflow", marks=pytest.mark.slow), "jax", "torch"]
)
# Runs both scripts in one process, because imports and compilation take long. Its first
# argument is the scripts' folder.
CODE = """
import os, runpy, sys, traceback
for script in ("search_on_backend.py", "model_on_backend.py"):
    try:
        runpy.run_path(os.path.join(sys.argv[1], script))
    except Exception:
        traceback.print_exc()
"""


def run(backend, *command, **environment):
    """Runs Python with the arguments `command` on a backend, and waits for its end."""
    paths = [TESTS.parent, TESTS, TESTS / "decoding", os.environ.get("PYTHONPATH")]
    return subprocess.run(
        [sys.executable, *command],
        env={
            **os.environ,
            "KERAS_BACKEND": backend,
            # JAX spends most of its time compiling, which this setting shortens.
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "PYTHONPATH": os.pathsep.join(map(str, filter(None, paths))),
            **environment,
        },
        capture_output=True,
        text=True,
        cwd=TESTS.parent,
    )


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    """Paths of a model's file, and of its inputs and logits in this process."""
    folder = tmp_path_factory.mktemp("saved")
    generator = np.random.default_rng(9)
    ids = {
        "source_ids": generator.integers(1, 41, size=(2, 5)).astype("int32"),
        "target_ids": generator.integers(1, 41, size=(2, 4)).astype("int32"),
    }
    # Same sizes as in `model_on_backend.py`, so that JAX compiles no more operations.
    widths = {"num_heads": 3, "key_dim": 5, "value_dim": 2}
    model = Transformer(41, num_layers=1, d_model=12, d_ff=17, **widths)
    model.build({name: value.shape for name, value in ids.items()})
    randomize(model)
    model.save(folder / "model.keras")
    np.savez(folder / "numbers.npz", logits=numpy(model(ids)), **ids)
    return str(folder / "model.keras"), str(folder / "numbers.npz")


@pytest.fixture(scope="module")
def checked(saved_model):
    """Function that runs both scripts on a backend, only once, and returns the process.

    The process is a `subprocess.CompletedProcess` with the scripts' output.
    """
    return functools.cache(
        lambda backend: run(backend, "-c", CODE, TESTS / "backends", *saved_model)
    )


@BACKENDS
def test_search_matches_oracles_on_backend(backend, checked):
    result = checked(backend)
    assert f"searched on {backend}" in result.stdout, result.stderr


@BACKENDS
def test_model_matches_the_paper_on_backend(backend, checked):
    result = checked(backend)
    assert f"checked on {backend}" in result.stdout, result.stderr


def run_on_jax(script, *arguments, devices=1):
    """Runs a script whose last argument is a JSON file, and returns its content."""
    result = run(
        *("jax", TESTS / "backends" / script, *arguments),
        XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}",
    )
    assert result.returncode == 0, result.stderr
    return json.loads(arguments[-1].read_text(encoding="utf-8"))


def test_training_on_jax_matches_tensorflow(tmp_path):
    script, path = "training_on_backend.py", tmp_path / "results.json"
    found = [run_on_jax(script, path, devices=devices) for devices in (1, 4)]
    expected = {name: training.results(name) for name in training.CASES}
    faults = {step[-1] for values in expected.values() for step in values["steps"]}
    assert faults >= {0, 2, 4}  # valid, `step_check.LOSS`, `step_check.EXPLOSION`
    expected["projected losses"] = training.projected_losses()
    for name, values in expected.items():
        tolerance = {"bfloat16": 3e-2, "float16": 1e-2}.get(name, 1e-4)
        tolerance = {"rtol": tolerance, "atol": tolerance, "err_msg": name}
        compare = functools.partial(np.testing.assert_allclose, **tolerance)
        for results in found:
            keras.tree.map_structure(compare, results[name], values)


def test_translator_on_jax_matches_tensorflow(tmp_path):
    models = tmp_path / "model.keras", tmp_path / "learned.keras"
    characters_model().save(models[0])
    size = Characters.vocabulary_size
    positions = {"positions": "learned", "max_length": 12}
    built(size, 1, 24, 40, num_heads=3, **positions).save(models[1])
    found = run_on_jax("translator_on_backend.py", *models, tmp_path / "results.json")
    expected = json.loads(json.dumps(translator_on_backend.results(*models)))
    keras.tree.assert_same_structure(found, expected)
    for value, right in zip(*map(keras.tree.flatten, (found, expected)), strict=True):
        assert value == (right if isinstance(right, str) else pytest.approx(right))


def last_checkpoint(folder):
    with np.load(folder / "checkpoints" / f"ckpt-{runs.STEPS}.npz") as arrays:
        return {name: arrays[name] for name in arrays if name != "progress"}


def log_rows(folder):
    """Returns the numbers in a run's log that do not depend on time."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    names = ("step", "loss", "perplexity", "accuracy", "learning_rate", "bleu")
    return [[row.get(name, 0.0) for name in names] for row in rows]


def test_runs_on_jax_resume_on_any_backend_and_devices(tmp_path):
    """On JAX, where TensorFlow cannot be imported, and on one to four devices."""
    words = ["eins", "two", "drei", "four"]
    text = [" ".join(words[: 1 + n % 4]) + f" {n}" for n in range(37)]
    tokenizer = train_tokenizer("bpe", text, 290)
    pairs = [*zip(text, reversed(text), strict=True)]
    corpus = encode_corpus(pairs, tokenizer, tokenizer, tmp_path / "corpus")
    runs.train(corpus, tmp_path / "tensorflow")
    runs.train(corpus, tmp_path / "begun on tensorflow", runs.INTERRUPTED)
    begun = "begun on four, dropout", "begun on one, dropout"
    # Runs on each number of devices: those from the start, and those that resume.
    for count, names, resumed in (
        (4, ("four", begun[0]), {"to four": "begun on tensorflow"}),
        (
            1,
            ("jax", "dropout", "interrupted, dropout", begun[1]),
            {"to jax": "begun on tensorflow", "four to one, dropout": begun[0]},
        ),
        (
            2,
            (),
            {"four to two, dropout": begun[0], "one to two, dropout": begun[1]},
        ),
    ):
        for name, first in resumed.items():
            shutil.copytree(tmp_path / first, tmp_path / name)
        script = TESTS / "backends" / "runs_on_backend.py"
        folders = [tmp_path / name for name in (*names, *resumed)]
        result = run(
            *("jax", script, tmp_path / "corpus", *folders),
            XLA_FLAGS=f"--xla_force_host_platform_device_count={count}",
            JAX_COMPILATION_CACHE_DIR=str(tmp_path / "cache"),
            JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        )
        assert result.returncode == 0, result.stderr
    whole = last_checkpoint(tmp_path / "dropout")
    resumed = last_checkpoint(tmp_path / "interrupted, dropout")
    assert whole.keys() == resumed.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(array, resumed[name], err_msg=name)
    shutil.copytree(tmp_path / "jax", tmp_path / "jax to tensorflow")
    (tmp_path / "jax to tensorflow" / "checkpoints" / "ckpt-5.npz").unlink()
    runs.train(corpus, tmp_path / "jax to tensorflow")
    # On JAX, dropout is the same on any number of devices.
    resumed = ("four to one, dropout", "four to two, dropout", "one to two, dropout")
    for expected, names in (
        ("tensorflow", ("jax", "to jax", "jax to tensorflow", "four", "to four")),
        ("dropout", resumed),
    ):
        arrays = last_checkpoint(tmp_path / expected)
        for name in names:
            found = last_checkpoint(tmp_path / name)
            for each, array in arrays.items():
                if "seeds" not in each or names == resumed:
                    np.testing.assert_allclose(found[each], array, 1e-4, 1e-5)
            np.testing.assert_allclose(
                *map(log_rows, (tmp_path / name, tmp_path / expected)), 1e-5, 1e-5
            )


def run_tests(backend, *tests, **environment):
    """Runs tests on a backend, all of which must pass."""
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    result = run(backend, *command, **environment)
    assert result.returncode == 0, result.stdout[-5000:]
    assert " passed" in result.stdout


@pytest.mark.slow
def test_multilingual_imports_match_transformers_on_jax():
    names = "(encoder_and_logits and not untied) or (search_matches and 4-)"
    run_tests("jax", "tests/interop/test_from_fairseq.py", "-k", names)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_layers_and_model_pass_their_tests_on_backend(backend):
    layers = ("tests/layers", "tests/numerics", "tests/test_attention_scores.py")
    model = (
        *("tests/test_transformer.py", "tests/test_sizes.py"),
        *("tests/decoding/test_cache.py", "tests/decoding/test_incremental.py"),
    )
    # Without JAX_ENABLE_X64, JAX converts int64 and float64 to 32 bits with a warning.
    for tests, environment in ((layers, {"JAX_ENABLE_X64": "1"}), (model, {})):
        run_tests(backend, *tests, **environment)
