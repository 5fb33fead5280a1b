"""Warm-up requests for TF-Serving in exports."""

import sys

import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from keras_transformer.export import export_saved_model
from keras_transformer.export.load import ExportLimits
from keras_transformer.export.warmup import write_warmup_requests


def test_warmup_requests_respect_the_batch_limit(tmp_path):
    write_warmup_requests(
        tmp_path, ExportLimits(max_batch_size=1, max_source_length=9, end_id=3)
    )
    (file,) = tmp_path.rglob("tf_serving_warmup_requests")
    rows = [
        tensor.tensor_shape.dim[0].size
        for record in tf.data.TFRecordDataset(str(file))
        for tensor in prediction_log_pb2.PredictionLog.FromString(
            record.numpy()
        ).predict_log.request.inputs.values()
    ]
    assert rows == [1] * 8  # six signatures, of which two have two inputs


def test_export_without_serving_api_names_the_extra(
    tiny_model, export_only, tmp_path, monkeypatch, caplog
):
    export_only("encode")
    for name in ("tensorflow_serving", "tensorflow_serving.apis"):
        monkeypatch.setitem(sys.modules, name, None)
    version = export_saved_model(*tiny_model, tmp_path, max_source_length=40)
    messages = [each.message for each in caplog.records if each.name.startswith("kera")]
    assert len(messages) == 1
    assert 'pip install "keras-transformer-seq2seq[serving-api]"' in messages[0]
    assert not list(version.rglob("tf_serving_warmup_requests"))
    assert (version / "saved_model.pb").is_file()


def test_export_can_omit_warmup_requests(
    tiny_model, export_only, tmp_path, monkeypatch, caplog
):
    export_only("encode")
    monkeypatch.setitem(sys.modules, "tensorflow_serving", None)
    version = export_saved_model(*tiny_model, tmp_path, warmup_requests=False)
    assert not caplog.records
    assert [each.name for each in (version / "assets.extra").iterdir()] == [
        "limits.json"
    ]
