"""`import keras_transformer` alone lets Keras load the package's models."""

import ast
import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_transformer as kt

IDS = {"source_ids": np.ones([2, 3], "int32"), "target_ids": np.ones([2, 3], "int32")}
# Prints the registered names, the optimizer's class, and an output of the model.
LOAD = """
import json, keras, numpy
model = keras.saving.load_model("model.keras")
ids = numpy.ones([2, 3], "int32")
output = model({"source_ids": ids, "target_ids": ids})
print(json.dumps([
    sorted(keras.saving.get_custom_objects()), type(model.optimizer).__name__,
    float(output[0, 0, 0]),
]))
"""


def registered_names():
    """Yields the name of each function and class with `register_keras_serializable`."""
    package = pathlib.Path(kt.__file__).parent
    for path in package.rglob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            decorators = getattr(node, "decorator_list", [])
            if any("register_keras_serializable" in ast.unparse(d) for d in decorators):
                yield f"keras_transformer>{node.name}"


# Python has not yet set `sys.argv` when `python -m mine` imports the package `mine`.
MINE = ("import keras_transformer", "-m", "mine")


@pytest.mark.parametrize(
    ("mine", "option", "code"),
    [("", "-c", f"import tensorflow, keras, keras_transformer\n{LOAD}"), MINE],
)
def test_any_order_of_imports_loads_a_compiled_model(tmp_path, mine, option, code):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text(mine)
    (tmp_path / "mine" / "__main__.py").write_text(LOAD)
    schedule = kt.training.NoamSchedule(8, 4)
    model = kt.Transformer(9, num_layers=1, d_model=8, d_ff=8, num_heads=2)
    expected = model(IDS)[0, 0, 0]
    model.compile(
        optimizer=kt.training.FusedAdam(kt.training.LinearCooldown(schedule, 20, 10)),
        loss=kt.training.SmoothedCrossEntropy(0.1),
        metrics=[kt.training.TokenAccuracy()],
    )
    model.save(tmp_path / "model.keras")
    result = subprocess.run(
        [sys.executable, option, code],
        cwd=tmp_path,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    names, optimizer, output = json.loads(result.stdout.splitlines()[-1])
    assert output == pytest.approx(float(keras.ops.convert_to_numpy(expected)), 1e-6)
    assert optimizer == "FusedAdam"
    assert names == sorted(registered_names())
