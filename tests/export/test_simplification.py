"""Simplified graphs have fewer nodes, and results that match hand calculations."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.export.simplification import (
    simplify_function,
    simplify_saved_model,
)


def save(folder, function, **tracked):
    """Writes a SavedModel with `function`, named `call`, and its variables."""
    module = tf.Module()
    for name, value in tracked.items():
        setattr(module, name, value)
    module.call = function.get_concrete_function()
    tf.saved_model.save(module, str(folder), signatures=module.call)


def nodes(folder):
    """Returns the nodes in the functions of a SavedModel, as one list per function."""
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((folder / "saved_model.pb").read_bytes())
    functions = model.meta_graphs[0].graph_def.library.function
    # TensorFlow adds functions that save and restore, with `_traced_` in their names.
    names = [function.signature.name for function in functions]
    return [
        list(function.node_def)
        for name, function in zip(names, functions, strict=True)
        if "_traced_" not in name
    ]


def operations(folder):
    """Returns the operation of each node in the functions of a SavedModel."""
    return [node.op for function in nodes(folder) for node in function]


def repeated_operations(folder):
    """Returns the operations of nodes that differ from another one in name only."""
    repeated = []
    for function in nodes(folder):
        seen = set()
        for node in function:
            node.ClearField("name")
            node.ClearField("experimental_debug_info")
            content = node.SerializeToString(deterministic=True)
            repeated += [node.op] if content in seen else []
            seen.add(content)
    return repeated


def load(folder):
    return tf.saved_model.load(str(folder)).call


GATHER = "GatherV2"
MATRIX = [tf.TensorSpec([None, None], tf.float32)]


def test_simplification_merges_equal_nodes_and_drops_unread_ones(tmp_path):
    @tf.function(input_signature=MATRIX, autograph=False)
    def call(x):
        tf.exp(x)  # nothing reads it
        rows, again = tf.shape(x)[0], tf.shape(x)[0]
        left, right = tf.tanh(x), tf.tanh(x)
        # The constants 2 and 3 differ, and so do the sums over rows and columns.
        total = left * 2.0 + right * 3.0 + tf.reduce_sum(left, 0, keepdims=True)
        total = total + tf.reduce_sum(right, 1, keepdims=True)
        return {"y": total / tf.cast(rows + again, tf.float32)}

    save(tmp_path, call)
    assert {"Tanh", "Shape", "Const"} <= set(repeated_operations(tmp_path))
    assert "Exp" in operations(tmp_path)
    simplify_saved_model(tmp_path)
    assert repeated_operations(tmp_path) == []
    assert "Exp" not in operations(tmp_path)
    x = np.arange(6, dtype="float32").reshape(2, 3) / 5
    tanh = np.tanh(x)
    expected = (5 * tanh + tanh.sum(0) + tanh.sum(1, keepdims=True)) / 4
    np.testing.assert_allclose(load(tmp_path)(x)["y"], expected, rtol=1e-6)


def test_simplification_keeps_stateful_operations_in_order(tmp_path):
    counter = tf.Variable(0.0)

    @tf.function(input_signature=MATRIX, autograph=False)
    def call(x):
        before = counter.read_value()
        counter.assign_add(2.0)
        between = counter.read_value()
        counter.assign_add(2.0)
        # Its output is unused, but it must still be able to fail.
        tf.debugging.assert_less(tf.reduce_sum(x), 10.0, "too much")
        return {"y": tf.stack([before, between, counter.read_value()])}

    save(tmp_path, call, counter=counter)
    simplify_saved_model(tmp_path)
    loaded = load(tmp_path)
    np.testing.assert_array_equal(loaded(np.ones([1, 1], "f"))["y"], [0, 2, 4])
    np.testing.assert_array_equal(loaded(np.ones([1, 1], "f"))["y"], [4, 6, 8])
    with pytest.raises(tf.errors.InvalidArgumentError, match="too much"):
        loaded(np.full([1, 1], 20, "f"))


def test_simplification_removes_the_correction_of_negative_indices(tmp_path):
    # Keras's `take` adds the axis size to negative indices. Searches have none, so the
    # simplification removes this correction, and a negative index becomes an error.
    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)], autograph=False)
    def call(rows):
        table = tf.range(10.0, 14.0)
        taken = keras.ops.take(table, rows, axis=0)
        # Not such corrections: another bound, and other values.
        lower = tf.gather(table, tf.where(rows < 1, rows + 1, rows))
        other = tf.gather(table, tf.where(rows < 0, rows + 1, tf.abs(rows)))
        return {"taken": taken, "lower": lower, "other": other}

    save(tmp_path, call)
    assert operations(tmp_path).count("SelectV2") == 3
    simplify_saved_model(tmp_path)
    found = operations(tmp_path)
    assert found.count("SelectV2") == 2 and found.count(GATHER) == 3
    loaded = load(tmp_path)
    result = loaded([3, 0, 2])
    np.testing.assert_array_equal(result["taken"], [13, 10, 12])
    np.testing.assert_array_equal(result["lower"], [13, 11, 12])
    np.testing.assert_array_equal(result["other"], [13, 10, 12])
    with pytest.raises(tf.errors.InvalidArgumentError, match="-1 is not in"):
        loaded([-1])


def test_simplification_keeps_random_draws_and_loops(tmp_path):
    @tf.function(input_signature=MATRIX, autograph=False)
    def call(x):
        draws = tf.random.normal([4]), tf.random.normal([4])
        _, doubled = tf.while_loop(
            lambda step, _: step < 3,
            lambda step, y: (step + 1, y + y),
            (0, x),
        )
        return {"difference": draws[0] - draws[1], "y": doubled}

    save(tmp_path, call)
    simplify_saved_model(tmp_path)
    found = load(tmp_path)(np.ones([1, 2], "f"))
    np.testing.assert_array_equal(found["y"], [[8, 8]])
    assert np.abs(found["difference"]).min() > 0


def test_export_graph_has_no_equal_nodes(tiny_export):
    """Also, the graph does not correct negative indices and has one search function."""
    # The fingerprint of the original graph would no longer match.
    assert not (tiny_export / "fingerprint.pb").exists()
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((tiny_export / "saved_model.pb").read_bytes())
    functions = model.meta_graphs[0].graph_def.library.function
    # One search serves the best translation and n-best lists.
    (search,) = [each for each in functions if each.attr["_noinline"].b]
    assert "While" in {node.op for node in search.node_def}
    assert sum(len(function.node_def) for function in functions) > 1000
    for function in functions:
        count = len(function.node_def)
        nodes = {node.name: node for node in function.node_def}
        for node in function.node_def:
            indices = nodes.get(node.input[1].split(":")[0]) if node.op == GATHER else 0
            if indices and indices.op == "SelectV2":
                condition = nodes[indices.input[0].split(":")[0]]
                assert condition.op != "Less", node.name
        simplify_function(function)  # in this copy, not in the file
        assert len(function.node_def) == count, function.signature.name
