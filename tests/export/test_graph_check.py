"""Untrusted exports whose graphs reach files or run code are refused before loading.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import shutil

import pytest
import tensorflow as tf
from malicious_graphs import GRAPHS, write_limits
from tensorflow.core.protobuf import saved_model_pb2, saver_pb2
from tensorflow.python.trackable.resource import CapturableResource

from keras_transformer.errors import ModelError
from keras_transformer.export.graph_check import check_saved_model
from keras_transformer.opening import open_model
from keras_transformer.serving import ServedModel


def export(folder, function, **tracked):
    """Writes a SavedModel whose `serving_default` translates with a function."""

    def serve(texts):
        return {"translations": function(texts), "scores": tf.zeros([1])}

    module = tf.Module()
    for name, value in tracked.items():
        setattr(module, name, value)
    module.f = tf.function(
        serve, input_signature=[tf.TensorSpec([None], tf.string, name="inputs")]
    )
    tf.saved_model.save(module, str(folder), signatures=module.f)
    write_limits(folder)


def _saves(texts):
    tf.raw_ops.SaveV2(
        prefix="/tmp/x", tensor_names=["a"], shape_and_slices=[""], tensors=[texts]
    )
    return texts


NAME = "/etc/hostname"
# Functions of texts whose graphs must be refused. test_allowed_operations.py tries all
# operations.
HOSTILE = {
    "reads": lambda texts: tf.io.read_file(NAME)[None],
    "saves": _saves,
    "hides in a branch": lambda texts: tf.cond(
        tf.size(texts) > 5, lambda: tf.io.read_file(NAME)[None], lambda: texts
    ),
}


@pytest.mark.fault("F23", "an export that can access files is rejected")
@pytest.mark.parametrize("name", HOSTILE)
def test_exports_that_reach_files_or_code_are_refused(tmp_path, name):
    export(tmp_path / "1", HOSTILE[name])
    for opening in (open_model, ServedModel):
        with pytest.raises(ModelError) as caught:
            opening(tmp_path)
        message = str(caught.value)
        assert message.startswith(f"{tmp_path / '1' / 'saved_model.pb'}: refused: ")
        assert ": refused: the operation '" in message
        assert "' is not allowed" in message
        assert "allow_unsafe" in message
        assert "\n" not in message


class _Opened(CapturableResource):
    """Resource whose initialization, when a SavedModel is loaded, writes a file."""

    def __init__(self, prefix):
        super().__init__()
        self.prefix = prefix

    def _create_resource(self):
        return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="x")

    def _initialize(self):
        _write(self.prefix)


def _write(prefix):
    save = tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=["a"],
        shape_and_slices=[""],
        tensors=[tf.constant("written")],
    )
    with tf.control_dependencies([save]):
        # Functions always run assertions, so this one ensures that `save` runs.
        tf.raw_ops.Assert(condition=True, data=["x"])


def test_check_refuses_a_saver_that_runs_on_opening(tmp_path):
    marker = tmp_path / "marker"
    export(tmp_path / "1", tf.identity, resource=_Opened(str(marker)))
    _assert_refused(tmp_path, marker, "'SaveV2' is not allowed outside of the saver")


def test_check_refuses_a_version_1_graph(tmp_path):
    """For SavedModels of version 1, TensorFlow's loader runs `restore_op_name`."""
    marker = tmp_path / "marker"
    with tf.Graph().as_default() as graph:
        inputs = tf.compat.v1.placeholder(tf.string, [None], "inputs")
        tf.compat.v1.placeholder(tf.string, [], "saver_filename")
        outputs = tf.identity(inputs, "translations")
        tf.function(_write)(str(marker))
        (call,) = (each for each in graph.get_operations() if "Call" in each.type)
        tf.constant("", name="save")
        signature = tf.compat.v1.saved_model.predict_signature_def(
            {"inputs": inputs}, {"translations": outputs}
        )
    version = tmp_path / "1"
    saver = saver_pb2.SaverDef(
        filename_tensor_name="saver_filename:0",
        save_tensor_name="save:0",
        restore_op_name=call.name,
        version=saver_pb2.SaverDef.V2,
    )
    builder = tf.compat.v1.saved_model.Builder(str(version))
    model = builder._saved_model
    model.saved_model_schema_version = 1
    meta_graph = model.meta_graphs.add(saver_def=saver)
    meta_graph.meta_info_def.tags.append("serve")
    meta_graph.graph_def.CopyFrom(graph.as_graph_def())
    meta_graph.signature_def["serving_default"].CopyFrom(signature)
    builder.save()
    (version / "variables").mkdir()
    write_limits(version)
    _assert_refused(tmp_path, marker, "not a SavedModel of version 2")


def _assert_refused(folder, marker, reason):
    """Asserts that an export is refused, and that TensorFlow's loader would run it."""
    with pytest.raises(ModelError) as caught:
        open_model(folder)
    message = str(caught.value)
    assert message.startswith(f"{folder / '1' / 'saved_model.pb'}: refused: ")
    assert reason in message
    assert "allow_unsafe" in message
    assert not list(folder.glob(f"{marker.name}*"))
    tf.saved_model.load(str(folder / "1"))
    assert list(folder.glob(f"{marker.name}*"))


@pytest.mark.parametrize("name", GRAPHS)
def test_check_refuses_altered_exports(tiny_export, tmp_path, name):
    change, reason = GRAPHS[name]
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((tiny_export / "saved_model.pb").read_bytes())
    change(model)
    (tmp_path / "saved_model.pb").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError) as caught:
        check_saved_model(tmp_path)
    message = str(caught.value)
    assert reason in message
    assert "allow_unsafe" in message
    assert "\n" not in message


def test_check_names_damaged_exports(tiny_export, tmp_path, monkeypatch):
    version = tmp_path / "1"
    shutil.copytree(tiny_export, version)
    whole = (version / "saved_model.pb").read_bytes()
    for content in (b"", b"\xff" * 99, whole[: len(whole) // 2]):
        (version / "saved_model.pb").write_bytes(content)
        with pytest.raises(ModelError, match="cannot be loaded"):
            open_model(tmp_path)
    (version / "saved_model.pb").write_bytes(whole)
    data = next((version / "variables").glob("*.data-*"))
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cannot be loaded"):
        open_model(tmp_path)
    monkeypatch.setattr("keras_transformer.export.graph_check.MAX_BYTES", 1000)
    with pytest.raises(ModelError, match="must have at most 1,000 bytes"):
        check_saved_model(version)
