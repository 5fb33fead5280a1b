"""Layers, model, losses, metrics, and schedules give the same results on each backend.

Files written on one backend load on the others.
"""

import importlib.util
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
from layer_checks import numpy
from layer_checks import randomize

from keras_transformer.transformer import Transformer

TESTS = pathlib.Path(__file__).resolve().parents[1]
BACKENDS = pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])


def run(backend, *command):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    paths = [str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH")]
    return subprocess.run(
        [sys.executable, *command],
        env={
            **os.environ,
            "KERAS_BACKEND": backend,
            # Most of the time JAX compiles.
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        },
        capture_output=True,
        text=True,
        cwd=TESTS.parent,
    )


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    """A model's file, and its inputs and logits on the backend of this process."""
    folder = tmp_path_factory.mktemp("saved")
    generator = np.random.default_rng(9)
    ids = {
        "source_ids": generator.integers(1, 41, size=(2, 5)).astype("int32"),
        "target_ids": generator.integers(1, 41, size=(2, 3)).astype("int32"),
    }
    model = Transformer(41, num_layers=1, d_model=12, d_ff=17, num_heads=3)
    model.build({name: value.shape for name, value in ids.items()})
    randomize(model)
    model.save(folder / "model.keras")
    np.savez(folder / "numbers.npz", logits=numpy(model(ids)), **ids)
    return str(folder / "model.keras"), str(folder / "numbers.npz")


@BACKENDS
def test_model_matches_the_paper_on_backend(backend, saved_model):
    if backend == keras.backend.backend() == "tensorflow":
        pytest.skip("the other tests run on tensorflow in this process")
    result = run(backend, str(TESTS / "backends" / "model_on_backend.py"), *saved_model)
    assert result.returncode == 0, result.stderr
    assert f"checked on {backend}" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_layers_and_model_pass_their_tests_on_backend(backend):
    tests = (
        *("tests/layers", "tests/numerics", "tests/test_transformer.py"),
        *("tests/test_presets.py", "tests/test_attention_scores.py"),
        *("tests/decoding/test_cache.py", "tests/decoding/test_incremental.py"),
    )
    result = run(backend, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert result.returncode == 0, result.stdout[-5000:]
    assert " passed" in result.stdout
