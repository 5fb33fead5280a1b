"""Keras loads the package's classes, whichever of the two is imported first."""

import ast
import os
import subprocess
import sys

import pytest
from test_rules import ROOT
from test_rules import source_files
from test_rules import syntax_tree

from keras_transformer import _registration

# Prints a number of the model's output, so that two processes can be compared.
SHOW = "print(f'{float(keras.ops.max(model(keras.ops.ones([1, 3])))):.5f}')"
LOAD = f"model = keras.saving.load_model('layers.keras'); {SHOW}"


def run(code, folder, backend="numpy"):
    """The last line that `code` prints in a fresh process, whose errors fail."""
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with `layers.keras`, a functional model, and what `SHOW` prints."""
    folder = tmp_path_factory.mktemp("models")
    code = f"""
import keras
from keras_transformer import layers

ids = keras.Input([None], dtype="int32")
x = layers.PositionalEncoding()(layers.TokenEmbedding(9, 8)(ids))
x = layers.Encoder(num_layers=1, num_heads=2, key_dim=4, d_ff=16)(x)
model = keras.Model(ids, layers.AddNorm()(x, layers.FeedForward(16)(x)))
model.save("layers.keras")
{SHOW}
"""
    return folder, run(code, folder)


def registered_classes(root):
    """(module, class) of each class that `register_keras_serializable` decorates."""
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


@pytest.mark.parametrize(
    "imports",
    [
        "import keras; import keras_transformer",
        "import keras_transformer; import keras",
        "import keras_transformer.layers; import keras",
        "import keras_transformer.training.losses; import keras",
        "from keras_transformer import layers; import keras",
        "import keras_transformer; import keras.saving",
        # Asks for Keras without importing it, as TensorFlow does.
        "import keras_transformer; from importlib.util import find_spec; "
        "assert find_spec('keras').loader.is_package('keras'); import keras",
        # Keras is imported by another thread.
        "import threading, keras_transformer; "
        "t = threading.Thread(target=__import__, args=['keras']); t.start(); "
        "import keras; t.join()",
        # pytest's hook, which comes first, loads a test that imports Keras.
        "import pathlib, pytest, keras_transformer; path = pathlib.Path('test_it.py'); "
        "path.write_text('import keras\\ndef test_it(): pass'); "
        "assert pytest.main(['-q', '-p', 'no:cacheprovider', str(path)]) == 0; "
        "import keras",
        # The first import fails, the second does not.
        "import sys, keras_transformer; sys.modules['numpy'] = None\n"
        "try: import keras\n"
        "except ImportError: del sys.modules['numpy']\n"
        "import keras",
    ],
)
def test_any_order_of_imports_loads_a_model(models, imports):
    folder, shown = models
    assert run(f"{imports}\n{LOAD}", folder) == shown


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
    written = run(write, tmp_path, "tensorflow")
    assert run(read, tmp_path, "tensorflow") == written


def test_custom_objects_still_work(tmp_path):
    define = """
import keras, keras_transformer
class Mine(keras.layers.Layer):
    def call(self, x):
        return 2 * x
"""
    write = """
from keras_transformer.layers import FeedForward
model = keras.Sequential([keras.Input([2, 4]), FeedForward(3), Mine()])
model.save("mine.keras")
print("saved")
"""
    read = """
with keras.saving.custom_object_scope({"Mine": Mine}):
    model = keras.saving.load_model("mine.keras")
other = keras.saving.load_model("mine.keras", custom_objects={"Mine": Mine})
print(*(type(layer).__name__ for layer in model.layers + other.layers))
"""
    assert run(define + write, tmp_path) == "saved"
    assert run(define + read, tmp_path) == "FeedForward Mine FeedForward Mine"


def test_imported_classes_replace_their_stand_ins(tmp_path):
    code = """
import keras_transformer, keras
name = "keras_transformer>AddNorm"
assert not isinstance(keras.saving.get_registered_object(name), type)
from keras_transformer.layers import AddNorm
assert keras.saving.get_registered_object(name) is AddNorm
print(keras.saving.get_registered_name(AddNorm))
"""
    assert run(code, tmp_path) == "keras_transformer>AddNorm"


def test_unknown_classes_are_still_refused(models):
    folder, _ = models
    code = """
import keras, keras_transformer
config = {"module": "keras_transformer.layers", "class_name": "Absent",
          "registered_name": "keras_transformer>Absent", "config": {}}
try:
    keras.saving.deserialize_keras_object(config)
except TypeError as error:
    print("Absent" in str(error))
"""
    assert run(code, folder) == "True"
