"""A check of exports from strangers: what their graphs may do.

A SavedModel is a program in TensorFlow's operations, some of which read and write
files. Ours computes on what it is given and on its variables; one that can do more is
refused before TensorFlow loads it. This bounds what an export can reach, not how long
it computes or how much memory it takes.
"""

import re

from keras_transformer.errors import ModelError
from keras_transformer.saving.keras_file import ALLOW_UNSAFE
from keras_transformer.saving.keras_file import short
from keras_transformer.saving.keras_file import shown

MAX_BYTES = 1 << 30  # of saved_model.pb, in which there are no weights

# Operations that act on more than their inputs: those that ours are made of.
_STATEFUL = {
    *("Assert", "Case", "If", "While", "StatefulPartitionedCall"),
    *("VarHandleOp", "VarIsInitializedOp", "ReadVariableOp", "AssignVariableOp"),
    *("ResourceGather", "DestroyResourceOp", "WordpieceTokenizeWithOffsets"),
    *("HashTableV2", "LookupTableFindV2", "LookupTableImportV2", "LookupTableSizeV2"),
    *("SentencepieceOp", "SentencepieceTokenizeOp", "SentencepieceDetokenizeOp"),
}
# Those that read and write the variables' files, for TensorFlow's own use.
_SAVER = {"SaveV2", "RestoreV2", "MergeV2Checkpoints", "ShardedFilename"}
_SAVER |= {"DisableCopyOnRead"}
# Of those without a state, some read files or call Python.
_REACHING = re.compile(
    "File|PyFunc|Dataset|Iterator|Reader|Summary|Proto|Debug|Print|Rpc|Save|Restore"
    "|Checkpoint|Plugin|XlaCustomCall|Tpu|TPU|Numpy|Send|Recv"
)
# What `tf.saved_model.load` makes of nodes without calling other libraries.
_OBJECTS = {
    *("_generic_user_object", "signature_map"),
    *("trackable_list_wrapper", "trackable_dict_wrapper", "trackable_tuple_wrapper"),
}
_REGISTERED = {"", "tf.TrackableConstant", "tf.StaticHashTable"}


def check_saved_model(path):
    """Refuses an export whose graph can reach out of itself.

    Args:
        path: the folder that holds `saved_model.pb`.

    Raises:
        ModelError: it is no SavedModel, or has operations or objects that none of
            ours has.
    """
    # The operations must be known before they can be judged.
    import tensorflow_text  # noqa: F401
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

    file = path / "saved_model.pb"
    model = saved_model_pb2.SavedModel()
    try:
        size = file.stat().st_size
        if size > MAX_BYTES:
            raise ModelError(
                f"{file}: refused: {size:,} bytes are more than the {MAX_BYTES:,} "
                "allowed"
            )
        model.ParseFromString(file.read_bytes())
    except (OSError, DecodeError, RecursionError) as error:
        raise ModelError(f"{path}: cannot be loaded: {short(error)}") from None
    for meta_graph in model.meta_graphs:
        problem = _problem(meta_graph)
        if problem:
            raise ModelError(f"{file}: refused: {problem}; {ALLOW_UNSAFE}")


def _problem(meta_graph):
    """What is wrong with a graph, or None."""
    graph, objects = meta_graph.graph_def, meta_graph.object_graph_def
    functions = {
        function.signature.name: list(function.node_def)
        for function in graph.library.function
    }
    savers = {
        name
        for name, nodes in functions.items()
        if any(node.op in _SAVER for node in nodes)
    }
    # They run when a model is saved or restored, and must not otherwise.
    called = {
        meta_graph.saver_def.save_tensor_name.partition(":")[0],
        meta_graph.saver_def.restore_op_name.partition(":")[0],
    }
    for where, nodes in [(None, list(graph.node)), *functions.items()]:
        for node in nodes:
            problem = _problem_of(node, where in savers)
            if problem:
                return problem
            if savers & set(_calls(node)) and (where or node.name not in called):
                return f"{shown(node.name)} calls what reads or writes files"
    if savers & set(objects.concrete_functions):
        return "a function of it reads or writes files"
    for node in objects.nodes:
        identifier = node.user_object.identifier
        is_user_object = node.WhichOneof("kind") == "user_object"
        if is_user_object and identifier not in _OBJECTS:
            return f"holds an object {shown(identifier)}"
        if node.registered_name not in _REGISTERED or node.registered_saver:
            return f"holds a registered object {shown(node.registered_name)}"
    return None


def _problem_of(node, in_saver):
    from tensorflow.python.framework import op_def_registry

    if node.op in _SAVER and in_saver:
        return None
    definition = op_def_registry.get(node.op)
    if definition is None:
        return f"has the operation {shown(node.op)}, which nothing here provides"
    if definition.is_stateful and node.op not in _STATEFUL | {"Placeholder"}:
        return f"has the operation {shown(node.op)}"
    if _REACHING.search(node.op):
        return f"has the operation {shown(node.op)}"
    return None


def _calls(node):
    """Names of the functions that a node calls."""
    for value in node.attr.values():
        if value.func.name:
            yield value.func.name
        for function in value.list.func:
            yield function.name
