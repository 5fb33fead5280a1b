"""Check of untrusted exports against a list of allowed operations.

A SavedModel is a program of TensorFlow operations, some of which read and write files,
call Python, or end the process. An export is refused before TensorFlow loads it unless
all its operations, their attributes and their text values occur in exports of this
package. They are listed in `allowed_operations.json`, which `tests/export_kinds.py`
collects from exports of every kind. The check does not limit computing time or memory.
"""

import functools
import json
import pathlib
import re
from collections.abc import Mapping, Sequence

from keras_transformer.errors import DataError, ModelError
from keras_transformer.saving.keras_file import ALLOW_UNSAFE
from keras_transformer.untrusted import quote, read_bytes, shorten

MAX_BYTES = 1 << 30  # of saved_model.pb, which contains no weights
ALLOWED = pathlib.Path(__file__).with_name("allowed_operations.json")
# Value in `allowed_operations.json` for an attribute that may have any text.
ANY_TEXT = "any text"

# Operations that read and write the files of variables. In a SavedModel, one function
# saves the variables and one restores them. Only the graph's saver calls these
# functions.
SAVER_OPERATIONS = {"SaveV2", "RestoreV2", "MergeV2Checkpoints", "ShardedFilename"}
# The paths that these operations may access, as expressions that `_spell` returns.
# PREFIX is the first argument of the function that saves or restores.
_SHARD = (
    "ShardedFilename(StringJoin(PREFIX, Select(StaticRegexFullMatch(PREFIX), "
    "'.part', '_temp/part')), 0, 1)"
)
_PATHS = {
    "SaveV2": [_SHARD],
    "MergeV2Checkpoints": [f"Pack({_SHARD})", "PREFIX"],
    "RestoreV2": ["PREFIX"],
}

# Objects that `tf.saved_model.load` creates without running code of other libraries.
_KINDS = {
    *("user_object", "function", "bare_concrete_function"),
    *("variable", "constant", "resource", "captured_tensor"),
}
_OBJECTS = {
    *("", "_generic_user_object", "signature_map"),
    *("trackable_list_wrapper", "trackable_dict_wrapper", "trackable_tuple_wrapper"),
}
_REGISTERED = {"", "tf.TrackableConstant", "tf.StaticHashTable"}
_DT_RESOURCE = 20
# Text that cannot be a path or an address.
_PLAIN_TEXT = re.compile(r"[\w,]*")
_LOCAL_DEVICE = re.compile(r"(/device:(CPU|GPU):(\d+|\*))?")


def check_saved_model(path):
    """Checks that an export contains only parts that exports of this package have."""
    # Registers tensorflow-text's operations, whose definitions the check reads.
    import tensorflow_text  # noqa: F401
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

    file = path / "saved_model.pb"
    try:
        content = read_bytes(file, MAX_BYTES, ModelError)
        model = saved_model_pb2.SavedModel.FromString(content)
    except (DecodeError, RecursionError) as error:
        raise ModelError(f"{path}: cannot be loaded: {shorten(error)}") from None
    if not model.meta_graphs:
        raise ModelError(f"{path}: cannot be loaded: it contains no graph")
    try:
        _check_model(model)
    except (DataError, DecodeError, ValueError) as error:
        raise ModelError(f"{file}: refused: {error}. {ALLOW_UNSAFE}") from None


@functools.cache
def allowed_operations():
    """Returns the rules for operations, functions and their attributes.

    The rule of an attribute is a list of the allowed texts, `ANY_TEXT`, or `None` if it
    must not have text. `allowed_operations.json` lists the attributes with text. The
    other attributes that an operation declares, which are numbers, types and shapes,
    are added here.
    """
    from tensorflow.core.framework import types_pb2
    from tensorflow.python.framework import op_def_registry

    rules = json.loads(ALLOWED.read_text(encoding="utf-8"))
    rules["types"] = {types_pb2.DataType.Value(name) for name in rules["types"]}
    for operations in (rules["operations"], rules["save"], rules["restore"]):
        for name, texts in operations.items():
            definition = op_def_registry.get(name)
            declared = definition.attr if definition is not None else ()
            operations[name] = {
                **{attribute.name: None for attribute in declared},
                **rules["annotations"],
                **texts,
            }
    return rules


def _check_model(model):
    """Raises a `ValueError` with the reason if a parsed SavedModel is refused."""
    from tensorflow.python.framework import op_def_registry

    if len(model.meta_graphs) != 1 or not model.meta_graphs[0].HasField(
        "object_graph_def"
    ):
        raise ValueError("the file is not a SavedModel of version 2 with one graph")
    (meta_graph,) = model.meta_graphs
    graph, rules = meta_graph.graph_def, allowed_operations()
    library = graph.library
    if library.gradient:
        raise ValueError("the graph has gradient functions")
    functions = {each.signature.name: each for each in library.function}
    if len(functions) < len(library.function):
        raise ValueError("the graph has two functions with the same name")
    for name in functions:
        # TensorFlow would run the function in place of the operation.
        if op_def_registry.get(name) is not None:
            raise ValueError(
                f"the graph has a function with an operation's name, {quote(name)}"
            )
    savers = _check_savers(meta_graph, functions, rules)
    callable_names = functions.keys() - savers.values()
    for node in graph.node:
        # Only the saver's nodes may call the functions that save and restore.
        called = {savers[node.name]} if node.name in savers else set()
        _check_node(node, rules["operations"], rules, callable_names | called)
    for name, function in functions.items():
        for node in function.node_def if name in callable_names else ():
            _check_node(node, rules["operations"], rules, callable_names)
        label = f"the function {quote(name)}"
        _check_attributes(label, function.attr, rules["functions"], rules)
        for argument in function.arg_attr.values():
            _check_attributes(label, argument.attr, rules["arguments"], rules)
    if meta_graph.asset_file_def:
        raise ValueError("the export has asset files")
    # Quantized layers register gradients.
    for gradient in library.registered_gradients:
        if gradient.gradient_func not in callable_names:
            raise ValueError(
                f"the gradient {quote(gradient.gradient_func)} is not allowed"
            )
    _check_objects(meta_graph.object_graph_def, callable_names)


def _check_savers(meta_graph, functions, rules):
    """Checks the functions that save and restore. Returns their names, by caller."""
    definition = meta_graph.saver_def
    filename = definition.filename_tensor_name.partition(":")[0]
    uses = {
        definition.save_tensor_name.partition(":")[0]: "save",
        definition.restore_op_name.partition(":")[0]: "restore",
    }
    found = {}
    for node in meta_graph.graph_def.node:
        if node.name == filename and node.op != "Placeholder":
            raise ValueError(
                "the graph has a saver without an input for the variables' path"
            )
        if node.name not in uses:
            continue
        name = node.attr["f"].func.name
        if node.input[:1] != [filename] or name not in functions:
            raise ValueError("the graph has a saver that is not TensorFlow's")
        found[node.name] = name
        _check_saver(functions[name], rules[uses[node.name]], rules)
    for name in functions.keys() - found.values():
        for node in functions[name].node_def:
            if node.op in SAVER_OPERATIONS:
                raise ValueError(
                    f"the operation {quote(node.op)} is not allowed outside of the "
                    "saver"
                )
    return found


def _check_saver(function, operations, rules):
    """Checks that a function of the saver accesses only the variables' files."""
    nodes = {node.name: node for node in function.node_def}
    prefix = "".join(each.name for each in function.signature.input_arg[:1])
    for node in function.node_def:
        _check_node(node, operations, rules, ())
        expected = _PATHS.get(node.op, [])
        if [_spell(each, nodes, prefix) for each in node.input[: len(expected)]] != (
            expected
        ):
            raise ValueError(
                f"{quote(node.op)} accesses files other than the variables"
            )


def _spell(reference, nodes, prefix, depth=0):
    """Returns the expression of a value as nested calls, such as those in `_PATHS`.

    Parts that do not occur in `_PATHS`, such as other arguments, become `"?"`.
    """
    name = reference.partition(":")[0]
    if name == prefix and name not in nodes:
        return "PREFIX"
    node = nodes.get(name)
    if node is None or depth > 5:
        return "?"
    if node.op == "Const":
        return _spell_constant(node.attr["value"].tensor)
    inputs = [each for each in node.input if not each.startswith("^")][:3]
    spelled = (_spell(each, nodes, prefix, depth + 1) for each in inputs)
    return f"{node.op}({', '.join(spelled)})"


def _spell_constant(tensor):
    if len(tensor.string_val) == 1:
        return repr(tensor.string_val[0].decode("utf-8", "replace"))
    return str(tensor.int_val[0]) if len(tensor.int_val) == 1 else "?"


def _check_node(node, operations, rules, callable_names):
    """Checks a node's operation, device, attributes and the functions that it calls."""
    attributes = operations.get(node.op)
    if attributes is None:
        raise ValueError(f"the operation {quote(node.op)} is not allowed")
    if not _LOCAL_DEVICE.fullmatch(node.device):
        raise ValueError(f"the device {quote(node.device)} is not allowed")
    for name in _check_attributes(node.op, node.attr, attributes, rules):
        if name not in callable_names:
            raise ValueError(f"{quote(node.name)} calls the function {quote(name)}")
    if node.op == "SentencepieceOp":
        from keras_transformer.pipelines.tokenizers.model_check import (
            check_sentencepiece_model,
        )

        check_sentencepiece_model(node.attr["model"].s)


def _check_attributes(label, attributes, allowed, rules):
    """Checks the attributes of a node or function by the rules in `allowed`.

    Returns the names of the functions that the attributes refer to.
    """
    called = []
    for name, value in attributes.items():
        if name not in allowed:
            raise ValueError(f"the attribute {quote(name)} of {label} is not allowed")
        texts, types, tensors, functions = attribute_values(value)
        if allowed[name] != ANY_TEXT:
            for text in texts:
                if text not in (allowed[name] or ()):
                    raise ValueError(
                        f"the {name} {quote(text)} of {label} is not allowed"
                    )
        stored = {tensor.dtype for tensor in tensors}
        if not stored.union(types) <= rules["types"]:
            raise ValueError(f"{label} has values of a type that exports do not have")
        # A constant resource could be a resource of another model.
        if _DT_RESOURCE in stored:
            raise ValueError(f"{label} has a constant that is a resource")
        if any(function.attr for function in functions):
            raise ValueError(f"{label} has attributes of a function that it calls")
        if name == "config_proto":
            _check_config(value.s)
        called += [function.name for function in functions]
    return called


def attribute_values(value):
    """Returns the texts, types, tensors and functions in an attribute's value."""
    kind = value.WhichOneof("value")
    if kind == "list":
        values = value.list
        texts = [text.decode("utf-8", "replace") for text in values.s]
        return texts, values.type, values.tensor, values.func
    return (
        [value.s.decode("utf-8", "replace")] if kind == "s" else [],
        [value.type] if kind == "type" else [],
        [value.tensor] if kind == "tensor" else [],
        [value.func] if kind == "func" else [],
    )


@functools.lru_cache(maxsize=16)
def _check_config(content):
    """Checks the settings of a function call, a serialized `ConfigProto`.

    The settings depend on the machine that wrote the export, so no list can contain
    them all. A setting is allowed if its text cannot be a path or an address.
    """
    from google.protobuf.message import Message
    from tensorflow.core.protobuf import config_pb2

    waiting = [config_pb2.ConfigProto.FromString(content)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str | bytes):
            text = value if isinstance(value, str) else value.decode("latin-1")
            if not _PLAIN_TEXT.fullmatch(text):
                raise ValueError(f"the setting {quote(text)} of a call is not allowed")
        elif isinstance(value, Mapping):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, Sequence):
            waiting += value
        elif isinstance(value, Message):
            waiting += [each for _, each in value.ListFields()]


def _check_objects(objects, callable_names):
    """Checks the objects that `tf.saved_model.load` creates."""
    names = set(objects.concrete_functions)
    for node in objects.nodes:
        kind = node.WhichOneof("kind")
        if kind not in _KINDS or node.user_object.identifier not in _OBJECTS:
            name = quote(node.user_object.identifier or kind)
            raise ValueError(f"the export contains the object {name}")
        if node.registered_name not in _REGISTERED or node.registered_saver:
            name = quote(node.registered_name)
            raise ValueError(f"the export contains the registered object {name}")
        if node.saveable_objects:
            raise ValueError("the export contains an object with a custom saver")
        for device in (node.variable.device, node.resource.device):
            if not _LOCAL_DEVICE.fullmatch(device):
                raise ValueError(f"the device {quote(device)} is not allowed")
        names.update(node.function.concrete_functions)
        if kind == "bare_concrete_function":
            names.add(node.bare_concrete_function.concrete_function_name)
        elif kind == "captured_tensor":
            names.add(node.captured_tensor.concrete_function)
    for name in sorted(names - callable_names):
        raise ValueError(
            f"the export contains an object with the function {quote(name)}"
        )
