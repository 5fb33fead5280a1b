"""The list of operations that untrusted exports may contain, allowed_operations.json.

The tests compare the list with all operations of TensorFlow and with our own exports.
"""

import copy
import json
import re

import export_kinds
import pytest
import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.client import pywrap_tf_session
from tiny_export import SENTENCES

from keras_transformer import pipelines
from keras_transformer.errors import ModelError
from keras_transformer.export.graph_check import (
    ALLOWED,
    ANY_TEXT,
    SAVER_OPERATIONS,
    allowed_operations,
    check_saved_model,
)
from keras_transformer.opening import open_model


def _registered_operations():
    listed = pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList())
    return {each.name: each for each in op_def_pb2.OpList.FromString(listed).op}


# Names of operations that reach files, networks, processes, or Python, or that share
# state between calls or models, where data could be hidden.
REACHING = re.compile(
    "File|Reader|Read(?!VariableOp$)|Write|Save|Restore|Checkpoint|Vocab|Load|Dump"
    "|Snapshot|Record|LMDB|Sql|Csv|CSV|ImmutableConst|Asset|FileSystem"
    "|Print|Debug|Summary|Event|Abort|Exit|Sleep|Service|Rpc|Send|Recv|Collective"
    "|Nccl|TPU|Tpu|TRT|Remote|Distributed|Worker|Session|Host"
    "|Py[A-Z]|Python|CustomCall|Plugin|Dataset|Iterator|Queue|Barrier|Stage|Map[A-Z]"
    "|Stack|TensorArray|Mutex|Mutable|Anonymous|Proto|Serialize|Deserialize|Variant"
    "|Lite|Numpy|Jit|Launch|Random|Multinomial"
)
# Names of attributes and inputs that are paths, addresses, or code.
PATHS = re.compile(
    "file|path|dir(ectory)?$|url|uri|address|host|host_|region|descriptor|output_stream"
    "|vocab$|prefix|target|token$|serialized|engine|library|module|python|command"
)
# Allowed operations with effects beyond their inputs, and what each of them does.
STATEFUL = {
    "Assert": "raises an error",
    "Case": "calls functions of the graph",
    "If": "calls functions of the graph",
    "While": "calls functions of the graph",
    "StatefulPartitionedCall": "calls functions of the graph",
    "Placeholder": "is an input",
    "VarHandleOp": "holds a variable of the graph",
    "VarIsInitializedOp": "reads a variable of the graph",
    "ReadVariableOp": "reads a variable of the graph",
    "AssignVariableOp": "writes a variable of the graph",
    "ResourceGather": "reads a variable of the graph",
    "HashTableV2": "holds a table of the graph",
    "LookupTableFindV2": "reads a table of the graph",
    "LookupTableImportV2": "writes a table of the graph",
    "SentencepieceOp": "holds a vocabulary that is an attribute",
    "SentencepieceTokenizeOp": "reads the vocabulary",
    "SentencepieceDetokenizeOp": "reads the vocabulary",
    "WordpieceTokenizeWithOffsets": "reads a table of the graph",
}


def test_allowed_operations_do_not_reach_files_or_network():
    registered, allowed = _registered_operations(), allowed_operations()["operations"]
    assert len(registered) > 1_500
    reaching = {name for name in registered if REACHING.search(name)}
    for name, definition in registered.items():
        inputs = [each.name for each in definition.input_arg]
        texts = [each.name for each in definition.attr if "string" in each.type]
        if any(PATHS.search(each) for each in [*inputs, *texts]):
            reaching.add(name)
    # Guard: the patterns find operations that are known to reach files or code.
    known = "ReadFile WriteFile MatchingFiles ImmutableConst GenerateVocabRemapping"
    known += " Abort PyFunc EagerPyFunc PyFuncStateless SaveV2 RestoreV2 PrintV2"
    known += " InitializeTableFromTextFileV2 LoadAndRemapMatrix DecodeProtoV2 RpcCall"
    known += " FixedUnigramCandidateSampler DebugIdentityV3 XlaCustomCallV2 Skipgram"
    assert set(known.split()) & registered.keys() <= reaching
    assert len(reaching) > 600
    assert reaching & allowed.keys() <= {
        # `PATHS` matches its attribute `unknown_token`, which is a word piece.
        "WordpieceTokenizeWithOffsets",
    }
    stateful = {name for name, each in registered.items() if each.is_stateful}
    assert stateful & allowed.keys() <= STATEFUL.keys()
    assert SAVER_OPERATIONS.isdisjoint(allowed)


def test_check_refuses_every_other_operation(tmp_path):
    registered, allowed = _registered_operations(), allowed_operations()["operations"]
    model = saved_model_pb2.SavedModel()
    meta_graph = model.meta_graphs.add()
    meta_graph.object_graph_def.SetInParent()
    function = meta_graph.graph_def.library.function.add()
    function.signature.name = "__inference_f_1"
    node = function.node_def.add(name="node")
    passing = set()
    for node.op in [*registered, "NoSuchOperation"]:
        (tmp_path / "saved_model.pb").write_bytes(model.SerializeToString())
        try:
            check_saved_model(tmp_path)
        except ModelError:
            continue
        passing.add(node.op)
    # SentencepieceOp passes only with a vocabulary, which this node lacks.
    assert passing == allowed.keys() - {"SentencepieceOp"}


def test_free_texts_are_not_paths():
    """Only names, patterns and vocabularies may have any text."""
    rules = allowed_operations()
    free = {
        name
        for section in ("operations", "save", "restore")
        for attributes in rules[section].values()
        for name, rule in attributes.items()
        if rule == ANY_TEXT
    }
    for section in ("annotations", "functions", "arguments"):
        free |= {name for name, rule in rules[section].items() if rule == ANY_TEXT}
    assert free == export_kinds.UNCHECKED_ATTRIBUTES


def _assert_listed(path):
    listed = json.loads(ALLOWED.read_text(encoding="utf-8"))
    rules = copy.deepcopy(listed)
    export_kinds.merge_rules(rules, export_kinds.collect(path))
    assert rules == listed, (
        f"an export has operations that allowed_operations.json lacks; if they touch "
        f"nothing but their inputs, run `{export_kinds.COMMAND}`"
    )
    check_saved_model(path)


def test_list_covers_an_export(tiny_export):
    _assert_listed(tiny_export)


def test_list_covers_activations(tmp_path):
    _assert_listed(export_kinds.write_activations(tmp_path / "1"))


def test_list_covers_word_pieces(tmp_path):
    """Checks the tokenizer only, because a complete export takes too long."""
    module = tf.Module()
    module.tokenizer = pipelines.train_tokenizer("word_piece", SENTENCES, 300)
    module.f = tf.function(
        lambda inputs: module.tokenizer.detokenize(module.tokenizer.tokenize(inputs)),
        input_signature=[tf.TensorSpec([None], tf.string, name="inputs")],
    )
    tf.saved_model.save(module, str(tmp_path / "1"), signatures=module.f)
    check_saved_model(tmp_path / "1")


@pytest.mark.slow
def test_list_matches_all_kinds_of_exports(tmp_path):
    rules = {}
    for kind, path in export_kinds.write_all(tmp_path):
        export_kinds.merge_rules(rules, export_kinds.collect(path))
        if kind == "activations":
            check_saved_model(path)
            continue
        assert len(open_model(path).translate(["der Hund", ""])) == 2
    listed = json.loads(ALLOWED.read_text(encoding="utf-8"))
    assert rules == listed, f"run `{export_kinds.COMMAND}`"
