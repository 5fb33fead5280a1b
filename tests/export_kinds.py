"""Tiny exports of every kind, and the operations that they consist of.

Unless `allow_unsafe` is set, a SavedModel may contain only the operations listed in
`keras_transformer/export/allowed_operations.json`. `python tests/export_kinds.py`
collects the operations of all kinds and rewrites this file in a few minutes. TensorFlow
2.20 and 2.21 give the same file. If another version gives a different one, store the
union of both.
"""

import inspect
import json
import pathlib
import tarfile
import tempfile
import types

import keras
import tensorflow as tf
import toolkit_models
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import saved_model_pb2
from tiny_export import SENTENCES

import keras_transformer as kt
from keras_transformer import pipelines
from keras_transformer.export import export_saved_model, graph_check
from keras_transformer.export.simplification import simplify_saved_model
from keras_transformer.numerics import matrices
from keras_transformer.pipelines.tokenizers.marian import MarianTokenizer
from keras_transformer.pipelines.tokenizers.normalization import TextSettings

COMMAND = "python tests/export_kinds.py"
FROZEN = pathlib.Path(__file__).resolve().parent / "frozen"

# Values for `kt.Variations` that add operations to the graph.
ALL_VARIATIONS = {
    "num_decoder_layers": 1,
    "attention_bias": True,
    "logits_bias": True,
    "zero_start_id": 1,
    "embedding_norm": True,
    "source_vocabulary_size": 300,
    "tied_output": False,
}
TEXT = TextSettings(
    normalization=True,
    sentences=True,
    capitals=True,
    scripts=["Latin"],
    words=["Hund"],
)
# Arguments of `write_export` by kind. The graph of every other kind differs from "bpe".
KINDS = {
    "bpe": {},
    "word_piece": {"tokenizer": "word_piece"},
    "core": {"tokenizer": "core"},
    "marian": {"tokenizer": "marian", "model": {"variations": ALL_VARIATIONS}},
    "text_core": {"tokenizer": "core", "text": TEXT},
    "parts": {"parallel_parts": 2},
    "xla": {"jit_compile": True, "parallel_parts": 2},
    "greedy": {"beam_size": 1},
    "greedy_xla": {"beam_size": 1, "jit_compile": True},
    "patience": {"patience": 2.0, "length_penalty_kind": "power"},
    "steered": {
        "no_repeat_ngram_size": 3,
        "repetition_penalty": 1.2,
        "coverage_penalty": 0.2,
        "min_length": 2,
        "max_length_ratio": 2.0,
        "jit_compile": True,
    },
    "constrained": {"constraints": True},
    "no_penalty": {"length_penalty": 0.0, "extra_length": 0},
    "learned": {"model": {"positions": "learned", "max_length": 60}},
    "relative": {"model": {"positions": "relative"}},
    "relative_xla": {"model": {"positions": "relative"}, "jit_compile": True},
    "relative_window": {"model": {"positions": "relative", "attention_window": 3}},
    "rotary": {"model": {"positions": "rotary"}},
    "rotary_xla": {"model": {"positions": "rotary"}, "jit_compile": True},
    "pre": {"model": {"normalization": "pre"}},
    "window": {"model": {"attention_window": 3}},
    "window_xla": {"model": {"attention_window": 3}, "jit_compile": True},
    "additive": {"model": {"score_mode": "additive"}},
    "additive_xla": {"model": {"score_mode": "additive"}, "jit_compile": True},
    "dot": {
        "model": {"score_mode": "dot", "normalization": "pre"},
        "jit_compile": True,
    },
    "trees": {"model": {"output_size": 290}},
    "trees_xla": {"model": {"output_size": 290}, "jit_compile": True},
    "dimensions": {"model": {"key_dim": 6, "value_dim": 5}, "jit_compile": True},
    "quantized": {"quantize": True},
    "quantized_xla": {"quantize": True, "jit_compile": True},
    "bfloat16": {"dtype": "mixed_bfloat16"},
    "bfloat16_xla": {"dtype": "mixed_bfloat16", "jit_compile": True},
    "float16": {"dtype": "mixed_float16"},
    "float64": {"dtype": "float64"},
    "all_bfloat16": {
        "dtype": "bfloat16",
        "model": {
            "positions": "learned",
            "max_length": 60,
            "normalization": "pre",
            "attention_window": 3,
            "score_mode": "additive",
        },
    },
}
# Attributes that may have any text: names, patterns, and the tokenizer's model, which
# is checked separately.
UNCHECKED_ATTRIBUTES = {
    *("shared_name", "debug_name", "_user_specified_name", "_gradient_op_type"),
    *("pattern", "rewrite", "model", "config_proto", "_class"),
}


def write_export(
    folder,
    tokenizer="bpe",
    model=None,
    dtype=None,
    quantize=False,
    parallel_parts=1,
    jit_compile=False,
    text=None,
    constraints=False,
    **search,
):
    """Writes a tiny export and returns its path.

    Args:
        folder: Folder for the export.
        tokenizer: Kind of tokenizer: "bpe", "word_piece", "marian", or "core" for BPE
            with TensorFlow's core operations.
        model: Dict of other arguments of `Transformer`.
        dtype: Dtype policy of the model.
        quantize: Whether to quantize the model to int8.
        parallel_parts: Argument of `export_saved_model`.
        jit_compile: Argument of `export_saved_model`.
        text: `TextSettings` of the tokenizer, or `None`.
        constraints: Argument of `export_saved_model`.
        search: Arguments of `BeamSearch`.
    """
    kind = "bpe" if tokenizer == "core" else tokenizer
    if kind == "marian":
        side = (toolkit_models.PIECES, toolkit_models.splitter())
        encoder = MarianTokenizer(side, side, "opus", "fra")
        model = {"pad_id": encoder.pad_id, "output_size": encoder.num_outputs, **model}
    else:
        encoder = pipelines.train_tokenizer(kind, SENTENCES, 300, text=text)
    # With the `MIN_PIECE_SIZE` that is set below, these sizes give packed kernels of
    # several pieces.
    sizes = {"num_layers": 2, "d_model": 64, "d_ff": 128, "num_heads": 4}
    built = kt.Transformer(
        encoder.vocabulary_size, **sizes, **(model or {}), dtype=dtype
    )
    built.build({"source_ids": (None, None), "target_ids": (None, None)})
    if quantize:
        built.quantize("int8")
    if tokenizer == "core":
        encoder = pipelines.CoreOpsBytePairTokenizer(encoder)
    original, matrices.MIN_PIECE_SIZE = matrices.MIN_PIECE_SIZE, 2**10
    try:
        return export_saved_model(
            built,
            encoder,
            folder,
            kt.BeamSearch(**{"extra_length": 7, **search}),
            max_source_length=40,
            parallel_parts=parallel_parts,
            jit_compile=jit_compile,
            constraints=constraints,
        )
    finally:
        matrices.MIN_PIECE_SIZE = original


def _activations():
    """Returns the names of Keras activations that require no argument except `x`."""
    names = []
    for name, function in vars(keras.activations).items():
        if not isinstance(function, types.FunctionType):
            continue
        _, *others = inspect.signature(function).parameters.values()
        if all(each.default is not each.empty for each in others):
            names.append(name)
    return sorted(set(names) - {"get", "serialize", "deserialize"})


def write_activations(folder):
    """Writes a SavedModel of all activations that recipes allow; returns its path."""
    functions = {name: keras.activations.get(name) for name in _activations()}

    def apply(x):
        return {name: function(x) for name, function in functions.items()}

    module = tf.Module()
    for dtype in ("float32", "bfloat16"):
        spec = tf.TensorSpec([None, None, 8], dtype)
        function = tf.function(apply, input_signature=[spec], autograph=False)
        setattr(module, dtype, function)
    signatures = {"float32": module.float32, "bfloat16": module.bfloat16}
    tf.saved_model.save(module, str(folder), signatures=signatures)
    simplify_saved_model(folder)
    return folder


def write_all(folder, kinds=tuple(KINDS)):
    """Writes exports into `folder` and yields the name and path of each.

    These are the given kinds, the activations, and exports of older releases, which
    are stored in tests/frozen.
    """
    for kind in kinds:
        yield kind, write_export(folder / kind, **KINDS[kind])
    yield "activations", write_activations(folder / "activations")
    for archive in FROZEN.glob("*/saved_model.tar.xz"):
        target = folder / archive.parent.name
        with tarfile.open(archive) as file:
            file.extractall(target, filter="data")
        yield archive.parent.name, target / "saved_model" / "1"


def collect(path):
    """Returns rules that allow the export's graph, as in `allowed_operations.json`."""
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((path / "saved_model.pb").read_bytes())
    (meta_graph,) = model.meta_graphs
    graph, saver = meta_graph.graph_def, meta_graph.saver_def
    callers = {
        saver.save_tensor_name.partition(":")[0]: "save",
        saver.restore_op_name: "restore",
    }
    sections = {
        node.attr["f"].func.name: callers[node.name]
        for node in graph.node
        if node.name in callers
    }
    rules = {"types": [], "annotations": {}, "functions": {}, "arguments": {}}
    nodes = [("operations", node) for node in graph.node]
    for function in graph.library.function:
        section = sections.get(function.signature.name, "operations")
        nodes += [(section, node) for node in function.node_def]
        _add(rules, {}, rules["functions"], function.attr)
        for argument in function.arg_attr.values():
            _add(rules, {}, rules["arguments"], argument.attr)
    for section, node in nodes:
        known = rules.setdefault(section, {}).setdefault(node.op, {})
        free = UNCHECKED_ATTRIBUTES if section == "operations" else ()
        _add(rules, known, rules["annotations"], node.attr, free)
    return rules


def _add(rules, known, annotations, attributes, free=UNCHECKED_ATTRIBUTES):
    """Adds the texts and types in the attributes of a node or a function to the rules.

    Args:
        rules: The rules, which get the types.
        known: Rules of the node's operation, which get its texts.
        annotations: Rules of attributes that TensorFlow may add to any node.
        attributes: Attributes by name.
        free: Names of the attributes that may have any text.
    """
    for name, value in attributes.items():
        texts, types, tensors, _ = graph_check.attribute_values(value)
        types = [*types, *(tensor.dtype for tensor in tensors)]
        names = list(map(types_pb2.DataType.Name, types))
        merge_rules(rules, {"types": names})
        is_annotation = name.startswith("_")
        if texts and name in (UNCHECKED_ATTRIBUTES if is_annotation else free):
            texts = graph_check.ANY_TEXT
        if is_annotation:
            merge_rules(annotations, {name: texts or None})
        elif texts:
            merge_rules(known, {name: texts})


def merge_rules(rules, others):
    """Adds `others` to `rules`, in place. Both have the form of the JSON file."""
    for key, value in others.items():
        known = rules.get(key)
        if isinstance(value, dict):
            merge_rules(rules.setdefault(key, {}), value)
        elif isinstance(value, list) and known != graph_check.ANY_TEXT:
            rules[key] = sorted({*(known or ()), *value})
        elif value is not None or key not in rules:
            rules[key] = value


def main():
    rules = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, path in write_all(pathlib.Path(folder)):
            merge_rules(rules, collect(path))
            print(kind, len(rules["operations"]), "operations", flush=True)
    text = json.dumps(rules, indent=1, sort_keys=True) + "\n"
    graph_check.ALLOWED.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
