"""Changes of a valid SavedModel that loading must refuse.

`model` is the `SavedModel` protocol buffer. The saver is the part of its graph that
saves and restores the variables.
"""

from keras_transformer.export.load import LIMITS, ExportLimits

# Numbers of TensorFlow's data types in its protocol buffers.
STRING, RESOURCE, VARIANT = 7, 20, 21


def write_unsafe_export(folder, marker):
    """Writes a SavedModel that creates the file `marker` when TensorFlow loads it."""
    import tensorflow as tf
    from tensorflow.python.trackable.resource import CapturableResource

    class Writer(CapturableResource):
        def _create_resource(self):
            return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[])

        def _initialize(self):
            tf.io.write_file(str(marker), "")

    module = tf.Module()
    module.writer = Writer()
    module.translate = tf.function(
        lambda inputs: {"translations": inputs, "scores": tf.zeros([1])},
        input_signature=[tf.TensorSpec([None], tf.string, "inputs")],
    )
    tf.saved_model.save(module, str(folder), signatures=module.translate)
    write_limits(folder)


def write_limits(folder):
    """Writes the limits that every export has."""
    limits = ExportLimits(max_batch_size=9, max_source_length=99, end_id=3)
    (folder / LIMITS).parent.mkdir()
    (folder / LIMITS).write_text(limits.model_dump_json())


def graph_function(model, operation):
    """Returns the first of a graph's functions that contains an operation."""
    functions = model.meta_graphs[0].graph_def.library.function
    return next(
        each for each in functions if any(n.op == operation for n in each.node_def)
    )


def graph_node(model, operation):
    """Returns the first node with a given operation in a graph's functions."""
    nodes = graph_function(model, operation).node_def
    return next(node for node in nodes if node.op == operation)


def saver_function(model, operation):
    """Returns the name of the saver's function that contains an operation."""
    return graph_function(model, operation).signature.name


def _graph(change):
    return lambda model: change(model.meta_graphs[0])


def _node(operation, change):
    return lambda model: change(graph_node(model, operation))


def _constant_path(operation, index=0):
    """Returns a change that replaces input `index` of an operation by a fixed path."""

    def change(model):
        function = graph_function(model, operation)
        node = next(each for each in function.node_def if each.op == operation)
        constant = function.node_def.add(name="path", op="Const")
        constant.attr["value"].tensor.dtype = STRING
        constant.attr["value"].tensor.string_val.append(b"/tmp/x")
        constant.attr["dtype"].type = STRING
        node.input[index] = "path:output:0"

    return change


def _other_suffix(model):
    function = graph_function(model, "SaveV2")
    for node in function.node_def:
        if node.op == "Const" and node.attr["value"].tensor.string_val == [b".part"]:
            node.attr["value"].tensor.string_val[0] = b"/../../../x"


def _call_the_saver(model):
    name = saver_function(model, "SaveV2")
    graph_node(model, "StatefulPartitionedCall").attr["f"].func.name = name


def _start_with_the_saver(model):
    graph = model.meta_graphs[0].graph_def
    name = saver_function(model, "SaveV2")
    node = next(each for each in graph.node if each.op == "StatefulPartitionedCall")
    node.attr["f"].func.name = name


def _save_on_restore(model):
    saver = model.meta_graphs[0].saver_def
    saver.restore_op_name = saver.save_tensor_name.partition(":")[0]


def _name_of_an_operation(model):
    old = graph_function(model, "SaveV2")
    for node in model.meta_graphs[0].graph_def.node:
        if node.attr["f"].func.name == old.signature.name:
            node.attr["f"].func.name = "AddV2"
    old.signature.name = "AddV2"


def _fixed_filename(model):
    for node in model.meta_graphs[0].graph_def.node:
        if node.name == "saver_filename":
            node.op = "Const"
            node.ClearField("attr")
            node.attr["value"].tensor.dtype = STRING
            node.attr["value"].tensor.string_val.append(b"/tmp/x")
            node.attr["dtype"].type = STRING


def _resource(node):
    node.attr["value"].tensor.dtype = RESOURCE
    node.attr["value"].tensor.resource_handle_val.add(name="another model's")
    node.attr["dtype"].type = RESOURCE


def _other_sentencepiece(meta_graph):
    for node in meta_graph.graph_def.node:
        if node.op == "SentencepieceOp":
            node.attr["model"].s = b"/etc/passwd"


def _cluster(node):
    from tensorflow.core.protobuf import config_pb2

    config = config_pb2.ConfigProto.FromString(node.attr["config_proto"].s)
    config.cluster_def.job.add(name="w").tasks[0] = "example.org:80"
    node.attr["config_proto"].s = config.SerializeToString()


def _attribute(name, text):
    return lambda node: setattr(node.attr[name], "s", text)


# Functions that change a `SavedModel` in place, and text of each error.
GRAPHS = {
    "no object graph": (
        _graph(lambda graph: graph.ClearField("object_graph_def")),
        "not a SavedModel of version 2",
    ),
    "two graphs": (
        lambda model: model.meta_graphs.add().CopyFrom(model.meta_graphs[0]),
        "not a SavedModel of version 2",
    ),
    "an asset": (
        _graph(lambda graph: graph.asset_file_def.add(filename="../../etc/passwd")),
        "the export has asset files",
    ),
    "a gradient of a function": (
        _graph(lambda graph: graph.graph_def.library.gradient.add(function_name="f")),
        "the graph has gradient functions",
    ),
    "a gradient of an operation": (
        _graph(
            lambda graph: graph.graph_def.library.registered_gradients.add(
                gradient_func="f"
            )
        ),
        "the gradient 'f' is not allowed",
    ),
    "a function twice": (
        _graph(
            lambda graph: graph.graph_def.library.function.add().CopyFrom(
                graph.graph_def.library.function[0]
            )
        ),
        "the graph has two functions with the same name",
    ),
    "a saver with an operation's name": (
        _name_of_an_operation,
        "an operation's name, 'AddV2'",
    ),
    "a signature that saves": (_call_the_saver, "calls the function"),
    "a graph that saves": (_start_with_the_saver, "calls the function"),
    "saves when it restores": (_save_on_restore, "is not allowed"),
    "saves to a fixed file": (_fixed_filename, "variables' path"),
    "saves elsewhere": (_constant_path("SaveV2"), "'SaveV2' accesses files other"),
    "merges elsewhere": (
        _constant_path("MergeV2Checkpoints", 1),
        "'MergeV2Checkpoints' accesses files other",
    ),
    "restores from elsewhere": (
        _constant_path("RestoreV2"),
        "'RestoreV2' accesses files other",
    ),
    "saves next to the folder": (_other_suffix, "'SaveV2' accesses files other"),
    "another machine": (
        _node("MatMul", lambda node: setattr(node, "device", "/job:worker/task:1")),
        "the device '/job:worker/task:1' is not allowed",
    ),
    "a function of the host": (
        _node(
            "StatefulPartitionedCall",
            lambda node: setattr(node.attr["f"].func, "name", "__inference_train_1"),
        ),
        "calls the function '__inference_train_1'",
    ),
    "settings of a cluster": (
        _node("StatefulPartitionedCall", _cluster),
        "the setting 'example.org:80' of a call is not allowed",
    ),
    "an executor": (
        _node("StatefulPartitionedCall", _attribute("executor_type", b"/x")),
        "executor_type '/x'",
    ),
    "a resource of another model": (_node("Const", _resource), "a resource"),
    "a file name": (
        _node("UnicodeTranscode", _attribute("input_encoding", b"/etc/passwd")),
        "input_encoding '/etc/passwd'",
    ),
    "an annotation of a node": (
        _node("MatMul", _attribute("_tpu_replicate", b"cluster")),
        "the attribute '_tpu_replicate' of MatMul is not allowed",
    ),
    "a type": (
        _node("Cast", lambda node: setattr(node.attr["SrcT"], "type", VARIANT)),
        "values of a type",
    ),
    "an invalid SentencePiece model": (
        _graph(_other_sentencepiece),
        "not a SentencePiece model",
    ),
}
