"""A SavedModel's graph without what tracing leaves in it twice or for nothing.

Two thirds of the nodes that tracing makes of a search are constants that are there
already, shapes taken again, and slices of shapes that nothing reads. TensorFlow drops
them before it computes, but whoever loads the graph holds them all in memory first.

What it could not know: that a search has no index below 0. Keras's `take` mends those
by five operations, a dozen times in each step of decoding.
"""

import copy

from tensorflow import make_ndarray
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import op_def_registry

from keras_transformer.files import replace_file


def simplify_saved_model(path):
    """Rewrites the graph in a SavedModel's folder, to the same results.

    Args:
        path: The folder that holds `saved_model.pb`. Its `fingerprint.pb`, which
            would be another graph's, is removed.
    """
    file = path / "saved_model.pb"
    model = saved_model_pb2.SavedModel()
    model.ParseFromString(file.read_bytes())
    for meta_graph in model.meta_graphs:
        for function in meta_graph.graph_def.library.function:
            simplify_function(function)
    with replace_file(file) as temporary:
        temporary.write_bytes(model.SerializeToString(deterministic=True))
    (path / "fingerprint.pb").unlink(missing_ok=True)


def simplify_function(function):
    """Merges equal nodes of a function and drops those that nothing needs, in place.

    Gathers take their indices as they are, without the mending of those below 0.
    Operations with a state keep their number and order; of those, only reads of
    variables that nothing needs are dropped.

    Args:
        function: `FunctionDef`.
    """
    nodes = {node.name: node for node in function.node_def}
    merged = {}  # the name of a node to that of an equal one
    first = {}
    order = _inputs_first(nodes)
    for name in order:
        node = nodes[name]
        node.input[:] = [_renamed(each, merged) for each in node.input]
        if node.op == "GatherV2":
            node.input[1] = _unmended(node.input[1], nodes)
        if _is_pure(node):
            merged[name] = first.setdefault(_meaning(node), name)
    for outputs in (function.ret, function.control_ret):
        for key, value in outputs.items():
            outputs[key] = _renamed(value, merged)
    needed = _needed(function, nodes)
    # Copies: the list that they lie in is emptied.
    kept = [copy.deepcopy(nodes[name]) for name in order if name in needed]
    del function.node_def[:]
    function.node_def.extend(kept)


def _inputs_first(nodes):
    """Names of the nodes, each after those that it takes."""
    order, begun = [], set()
    for root in nodes:
        stack = [] if root in begun else [(root, iter(_taken(nodes[root])))]
        begun.add(root)
        while stack:
            name, taken = stack[-1]
            following = next(taken, None)
            if following is None:
                order.append(name)
                stack.pop()
            elif following in nodes and following not in begun:
                begun.add(following)
                stack.append((following, iter(_taken(nodes[following]))))
    return order


def _needed(function, nodes):
    """Names of the nodes that results or operations with a state need."""
    waiting = [value.partition(":")[0] for value in function.ret.values()]
    waiting += function.control_ret.values()
    waiting += [
        name
        for name, node in nodes.items()
        if not _is_pure(node) and node.op != "ReadVariableOp"
    ]
    needed = set()
    while waiting:
        name = waiting.pop()
        # The function's own arguments are no nodes.
        if name in nodes and name not in needed:
            needed.add(name)
            waiting += _taken(nodes[name])
    return needed


def _taken(node):
    """Names of the nodes and arguments that a node waits for."""
    return [each.lstrip("^").partition(":")[0] for each in node.input]


def _renamed(reference, merged):
    """`name`, `^name` or `name:output:index`, with the name that a node has now."""
    caret = "^" if reference.startswith("^") else ""
    name, colon, output = reference.removeprefix("^").partition(":")
    return caret + merged.get(name, name) + colon + output


def _unmended(reference, nodes):
    """What `where(indices < 0, indices + size, indices)` is made of, else itself."""

    def made_by(reference, op):
        node = nodes.get(reference.partition(":")[0])
        return node if node is not None and node.op == op else None

    select = made_by(reference, "SelectV2")
    if select is None:
        return reference
    condition, shifted, indices = select.input[:3]
    less, add = made_by(condition, "Less"), made_by(shifted, "AddV2")
    if less is None or add is None or not less.input[0] == add.input[0] == indices:
        return reference
    bound = made_by(less.input[1], "Const")
    is_zero = bound is not None and not make_ndarray(bound.attr["value"].tensor).any()
    return indices if is_zero else reference


def _is_pure(node):
    """Whether a node's outputs depend on its inputs alone."""
    definition = op_def_registry.get(node.op)
    return definition is not None and not definition.is_stateful


def _meaning(node):
    """What two nodes share that compute the same."""
    attributes = sorted(
        (name, value.SerializeToString(deterministic=True))
        for name, value in node.attr.items()
    )
    return node.op, node.device, tuple(node.input), tuple(attributes)
