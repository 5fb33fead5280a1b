"""Keras loads the package's classes in every order of imports.

The package registers a placeholder with Keras for each class. Importing the class's
module replaces the placeholder (see `_registration`). Each program below runs in a
fresh process and prints a result that the tests compare.
"""

import ast
import json
import os
import subprocess
import sys

import prepared
import pytest
from test_rules import ROOT
from test_rules import source_files
from test_rules import syntax_tree

from keras_transformer import _registration

# Prints the maximum of the model's output, to compare two processes.
SHOW = "print(f'{float(keras.ops.max(model(keras.ops.ones([1, 3])))):.5f}')"
LOAD = f"model = keras.saving.load_model('layers.keras'); {SHOW}"
# Writes `layers.keras`, a functional model.
WRITE = f"""
import keras
from keras_transformer import layers

ids = keras.Input([None], dtype="int32")
x = layers.PositionalEncoding()(layers.TokenEmbedding(9, 8)(ids))
x = layers.Encoder(num_layers=1, num_heads=2, key_dim=4, d_ff=16)(x)
model = keras.Model(ids, layers.AddNorm()(x, layers.FeedForward(16)(x)))
model.save("layers.keras")
{SHOW}
"""
# Orders of imports, each followed by `LOAD`.
IMPORTS = [
    "import keras; import keras_transformer",
    "import keras_transformer; import keras",
    "import keras_transformer.layers; import keras",
    # Looks up Keras's module spec without importing Keras, as TensorFlow does.
    "import keras_transformer; from importlib.util import find_spec; "
    "assert find_spec('keras').loader.is_package('keras'); import keras",
    # Keras is imported by another thread.
    "import threading, keras_transformer; "
    "t = threading.Thread(target=__import__, args=['keras']); t.start(); "
    "import keras; t.join()",
    # pytest's import hook precedes the package's and loads a test that imports Keras.
    "import pathlib, pytest, keras_transformer; path = pathlib.Path('test_it.py'); "
    "path.write_text('import keras\\ndef test_it(): pass'); "
    "assert pytest.main(['-q', '-p', 'no:cacheprovider', str(path)]) == 0; "
    "import keras",
]
MORE_IMPORTS = [
    "import keras_transformer.training.losses; import keras",
    "from keras_transformer import layers; import keras",
    "import keras_transformer; import keras.saving",
]
# A user's class, which the package does not register.
MINE = """
import keras, keras_transformer
class Mine(keras.layers.Layer):
    def call(self, x):
        return 2 * x
"""
WRITE_MINE = f"""{MINE}
from keras_transformer.layers import FeedForward
model = keras.Sequential([keras.Input([2, 4]), FeedForward(3), Mine()])
model.save("mine.keras")
print("saved")
"""
LOAD_MINE = f"""{MINE}
with keras.saving.custom_object_scope({{"Mine": Mine}}):
    model = keras.saving.load_model("mine.keras")
other = keras.saving.load_model("mine.keras", custom_objects={{"Mine": Mine}})
print(*(type(layer).__name__ for layer in model.layers + other.layers))
"""
WRITE_FUNCTION = """
import keras
from keras_transformer.numerics.activations import quick_gelu
dense = keras.layers.Dense(3, activation=quick_gelu)
keras.Sequential([keras.Input([2]), dense]).save("function.keras")
print("saved")
"""
LOAD_FUNCTION = """
import keras, keras_transformer
model = keras.saving.load_model("function.keras")
model.save("again.keras")
print(keras.saving.load_model("again.keras").layers[0].activation.__name__)
"""
PLACEHOLDERS = """
import keras_transformer, keras
name = "keras_transformer>AddNorm"
assert not isinstance(keras.saving.get_registered_object(name), type)
from keras_transformer.layers import AddNorm
assert keras.saving.get_registered_object(name) is AddNorm
print(keras.saving.get_registered_name(AddNorm))
"""
UNKNOWN = """
import keras, keras_transformer
config = {"module": "keras_transformer.layers", "class_name": "Absent",
          "registered_name": "keras_transformer>Absent", "config": {}}
try:
    keras.saving.deserialize_keras_object(config)
except TypeError as error:
    print("Absent" in str(error))
"""
# Runs each program in its own fork and prints a list of exit codes and outputs. To save
# time, Keras's dependencies are imported before the fork, but Keras is not.
FORKS = """
import contextlib, importlib, json, os, sys, traceback
for name in ("absl.logging", "h5py", "ml_dtypes", "numpy", "optree", "requests",
             "jax.numpy", "jax.experimental.sparse", "scipy.linalg", "scipy.signal",
             "matplotlib.pyplot", "IPython"):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
assert not {"keras", "keras_transformer"} & set(sys.modules)
results = []
for code in json.load(sys.stdin):
    with open("output", "w+") as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            exit_code = 1
            try:
                exec(code, {"__name__": "__main__"})
                exit_code = 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(exit_code)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        results.append([os.waitstatus_to_exitcode(status), output.read()])
print(json.dumps(results))
"""


def run(code, folder, backend="numpy", stdin=None):
    """Returns the last line that `code` prints in a fresh process without errors."""
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
        input=stdin,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def printed(folder):
    """Function that returns the last line that one of the programs printed."""
    programs = [WRITE, WRITE_MINE, *(f"{each}\n{LOAD}" for each in IMPORTS)]
    programs += [LOAD_MINE, WRITE_FUNCTION, LOAD_FUNCTION, PLACEHOLDERS, UNKNOWN]
    results = json.loads(run(FORKS, folder, stdin=json.dumps(programs)))
    results = dict(zip(programs, results, strict=True))

    def printed(program):
        exit_code, output = results[program]
        assert exit_code == 0, output[-3000:]
        return output.splitlines()[-1]

    return printed


def registered_classes(root):
    """Yields (module, class name) per class with `register_keras_serializable`."""
    for name, path in source_files(root):
        for node in syntax_tree(path).body:
            decorators = getattr(node, "decorator_list", [])
            if any("register_keras_serializable" in ast.unparse(d) for d in decorators):
                yield name, node.name


def test_table_contains_each_registered_class():
    table = {
        (module, name)
        for module, names in _registration.CLASSES.items()
        for name in names
    }
    found = set(registered_classes(ROOT))
    assert len(found) > 15
    assert sorted(found - table) == [], "not in _registration.CLASSES"
    assert sorted(table - found) == [], "in _registration.CLASSES only"


@pytest.mark.backends
@pytest.mark.parametrize("imports", IMPORTS)
def test_any_order_of_imports_loads_a_model(printed, imports):
    assert printed(f"{imports}\n{LOAD}") == printed(WRITE)


@pytest.mark.backends
@pytest.mark.slow
@pytest.mark.parametrize("imports", MORE_IMPORTS)
def test_more_orders_of_imports_load_a_model(printed, folder, imports):
    assert run(f"{imports}\n{LOAD}", folder) == printed(WRITE)


@pytest.mark.backends
def test_keras_can_be_imported_again_after_a_failure(printed, folder):
    imports = """
import sys, keras_transformer; sys.modules['numpy'] = None
try: import keras
except ImportError: del sys.modules['numpy']
import keras
"""
    assert run(f"{imports}\n{LOAD}", folder) == printed(WRITE)


def test_tensorflow_first_loads_a_compiled_transformer(tmp_path):
    write = """
import keras, numpy
import keras_transformer as kt
from keras_transformer import training
model = kt.Transformer(9, num_layers=1, d_model=8, d_ff=8, num_heads=2)
ids = numpy.ones([2, 3], "int32")
inputs = {"source_ids": ids, "target_ids": ids}
output = float(model(inputs)[0, 0, 0])
model.compile(
    optimizer=training.FusedAdam(
        training.LinearCooldown(training.PaperSchedule(8, 4), 20, 10)
    ),
    loss=training.SmoothedCrossEntropy(0.1),
    metrics=[training.TokenAccuracy()],
)
model.save("model.keras")
print(output)
"""
    read = """
import tensorflow as tf, keras_transformer
model = tf.keras.models.load_model("model.keras")
ids = tf.ones([2, 3], "int32")
inputs = {"source_ids": ids, "target_ids": ids}
assert type(model.optimizer).__name__ == "FusedAdam"
print(float(model(inputs)[0, 0, 0]))
"""
    written = prepared.run(write, folder=tmp_path, cwd=tmp_path)
    assert written.returncode == 0, written.stderr[-3000:]
    assert run(read, tmp_path, "tensorflow") == written.stdout.splitlines()[-1]


@pytest.mark.backends
def test_custom_objects_still_work(printed):
    assert printed(WRITE_MINE) == "saved"
    assert printed(LOAD_MINE) == "FeedForward Mine FeedForward Mine"


@pytest.mark.backends
def test_functions_load_in_a_fresh_process(printed):
    assert printed(WRITE_FUNCTION) == "saved"
    assert printed(LOAD_FUNCTION) == "quick_gelu"


@pytest.mark.backends
def test_imported_classes_replace_their_placeholders(printed):
    assert printed(PLACEHOLDERS) == "keras_transformer>AddNorm"


@pytest.mark.backends
def test_unknown_classes_are_still_refused(printed):
    assert printed(UNKNOWN) == "True"
