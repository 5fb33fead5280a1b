"""Searches give the same results on every backend."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent


@pytest.mark.parametrize(
    "backend",
    # The other tests of searches run on TensorFlow.
    ["jax", "torch", pytest.param("tensorflow", marks=pytest.mark.slow)],
)
def test_search_matches_oracles_on_backend(backend):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    result = subprocess.run(
        [sys.executable, str(HERE / "search_on_backend.py")],
        env={
            **os.environ,
            "KERAS_BACKEND": backend,
            # Most of the time JAX compiles.
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "PYTHONPATH": str(HERE.parents[1]),
        },
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert f"searched on {backend}" in result.stdout
