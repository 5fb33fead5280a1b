"""Removal of duplicate and dead nodes from a SavedModel graph.

Two thirds of the nodes of a traced search are repeated constants, repeated shapes, and
slices of shapes that nothing reads. TensorFlow removes them before it computes, but
until then, a program that loads the graph keeps all of them in memory.

Keras's `take` supports negative indices with five operations, which occur a dozen times
per decoding step. A search has no negative indices, but TensorFlow cannot infer this.
So this module removes these operations, too.
"""

import copy
import graphlib

from tensorflow import make_ndarray
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import op_def_registry

from keras_transformer.files import replace_file


def simplify_saved_model(path):
    """Simplifies the graph in a SavedModel's folder without changing its results.

    `fingerprint.pb` is removed, because it would no longer match.
    """
    file = path / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    for meta_graph in model.meta_graphs:
        for function in meta_graph.graph_def.library.function:
            simplify_function(function)
    with replace_file(file) as temporary:
        temporary.write_bytes(model.SerializeToString(deterministic=True))
    (path / "fingerprint.pb").unlink(missing_ok=True)


def simplify_function(function):
    """Merges equal nodes of a `FunctionDef` and removes unused ones, in place.

    `GatherV2` nodes lose their support for negative indices. Stateful operations keep
    their number and order, except that unused reads of variables are removed.
    """
    nodes = {node.name: node for node in function.node_def}
    merged = {}  # maps a node's name to the name of the equal node that stays
    first = {}  # maps a computation to the name of the first node that performs it
    # Each node comes after its inputs.
    inputs = {name: _input_names(node) for name, node in nodes.items()}
    order = [*graphlib.TopologicalSorter(inputs).static_order()]
    order = [name for name in order if name in nodes]  # arguments are not nodes
    for name in order:
        node = nodes[name]
        node.input[:] = [_rename(each, merged) for each in node.input]
        if node.op == "GatherV2":
            node.input[1] = _original_indices(node.input[1], nodes)
        if _is_pure(node):
            merged[name] = first.setdefault(_computation(node), name)
    for outputs in (function.ret, function.control_ret):
        for key, value in outputs.items():
            outputs[key] = _rename(value, merged)
    used = _used_nodes(function, nodes)
    # `del` frees the nodes in the list, so the kept ones are copied.
    kept = [copy.deepcopy(nodes[name]) for name in order if name in used]
    del function.node_def[:]
    function.node_def.extend(kept)


def _used_nodes(function, nodes):
    """Returns the names of the nodes that results or stateful operations need."""
    waiting = [value.partition(":")[0] for value in function.ret.values()]
    waiting += function.control_ret.values()
    waiting += [
        name
        for name, node in nodes.items()
        if not _is_pure(node) and node.op != "ReadVariableOp"
    ]
    used = set()
    while waiting:
        name = waiting.pop()
        # The function's arguments are not nodes.
        if name in nodes and name not in used:
            used.add(name)
            waiting += _input_names(nodes[name])
    return used


def _input_names(node):
    """Returns the names of the nodes and arguments that a node depends on."""
    return [each.lstrip("^").partition(":")[0] for each in node.input]


def _rename(reference, merged):
    """Replaces a node's name in `name`, `^name` or `name:output:index`."""
    caret = "^" if reference.startswith("^") else ""
    name, colon, output = reference.removeprefix("^").partition(":")
    return caret + merged.get(name, name) + colon + output


def _original_indices(reference, nodes):
    """Removes the support for negative indices from a `GatherV2` input.

    If `reference` names a node `where(indices < 0, indices + size, indices)`, returns
    the reference to `indices`. Otherwise, returns `reference`.
    """

    def find_node(reference, op):
        node = nodes.get(reference.partition(":")[0])
        return node if node is not None and node.op == op else None

    select = find_node(reference, "SelectV2")
    if select is None:
        return reference
    condition, shifted, indices = select.input[:3]
    less, add = find_node(condition, "Less"), find_node(shifted, "AddV2")
    if less is None or add is None or not less.input[0] == add.input[0] == indices:
        return reference
    bound = find_node(less.input[1], "Const")
    is_zero = bound is not None and not make_ndarray(bound.attr["value"].tensor).any()
    return indices if is_zero else reference


def _is_pure(node):
    """Returns whether a node's outputs depend on its inputs alone."""
    definition = op_def_registry.get(node.op)
    return definition is not None and not definition.is_stateful


def _computation(node):
    """Returns a key that is equal for nodes that compute the same value."""
    attributes = sorted(
        (name, value.SerializeToString(deterministic=True))
        for name, value in node.attr.items()
    )
    return node.op, node.device, tuple(node.input), tuple(attributes)
