"""Training on two replicas matches training on one with the same global batches.

`fault_table.py` explains the marker `fault`.
"""

import pathlib

import numpy as np
import prepared
import pytest
from replicas_run import RUNS
from training_samples import weights_of

SCRIPT = pathlib.Path(__file__).resolve().parent / "replicas_run.py"


def run_on_two_replicas(folder, *names):
    """Trains on two logical CPU devices and returns the folder of the results."""
    result = prepared.run(prepared.script(SCRIPT), folder, *names, folder=folder)
    assert result.returncode == 0, result.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def fault_runs(tmp_path_factory):
    """Folder with the results of overflows on one replica and of a resumed run."""
    return run_on_two_replicas(tmp_path_factory.mktemp("replicas"))


def load_arrays(path):
    """Returns the weights and the metrics in an .npz file."""
    with np.load(path) as stored:
        weights = [stored[name] for name in stored if name.startswith("arr_")]
        metrics = {
            name: float(stored[name]) for name in stored if not name.startswith("arr_")
        }
    return weights, metrics


@pytest.mark.parametrize(
    "name",
    [
        name if name == "step" else pytest.param(name, marks=pytest.mark.slow)
        for name in RUNS
    ],
)
def test_two_replicas_match_one_replica(tmp_path, name):
    weights, metrics = load_arrays(run_on_two_replicas(tmp_path, name) / f"{name}.npz")
    model, expected_metrics = RUNS[name]()
    # In half precision, sums over parts of a batch round differently.
    tolerance = 3e-3 if name == "float16" else 2e-5
    expected = weights_of(model)
    assert len(weights) == len(expected) > 10
    for weight, value in zip(weights, expected, strict=True):
        np.testing.assert_allclose(weight, value, rtol=1e-3, atol=tolerance)
    assert metrics == pytest.approx(expected_metrics, 5e-3 if "16" in name else 1e-4)


@pytest.mark.slow
@pytest.mark.fault("F11", "on one replica of two: both skip the update")
def test_overflow_on_one_replica_skips_step_on_all(fault_runs):
    # The initial loss scale of 64 is halved. Fault 3 is `step_check.GRADIENT`.
    assert load_arrays(fault_runs / "overflow.npz")[1] == {
        "scale": 32.0,
        "fault": 3.0,
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dropout", "tokens"])
def test_replicas_drop_different_units(fault_runs, name):
    with np.load(fault_runs / "dropped.npz") as stored:
        masks = stored[name] > 0  # [steps, replicas, rows, columns]
    assert masks.shape[:2] == (2, 2)
    draws = masks.reshape(4, -1)
    for number, mask in enumerate(draws):
        assert 0.35 < mask.mean() < 0.65
        # Independent masks agree in half of the units.
        for other in draws[:number]:
            assert 0.35 < (mask == other).mean() < 0.65


@pytest.mark.slow
@pytest.mark.fault("F05", "on two replicas: bit-identical weights")
def test_two_replicas_resume_bit_identically(fault_runs):
    cut, _ = load_arrays(fault_runs / "cut.npz")
    whole, _ = load_arrays(fault_runs / "whole.npz")
    for weight, expected in zip(cut, whole, strict=True):
        np.testing.assert_array_equal(weight, expected)
