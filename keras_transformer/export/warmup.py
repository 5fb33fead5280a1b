"""Requests that TF-Serving sends itself before it lets a version take others."""

import pathlib

import tensorflow as tf

_PATH = pathlib.Path("assets.extra") / "tf_serving_warmup_requests"
_TEXTS = ["a", "a b c d e f g"]
_IDS = [[4, 5, 3]]
# The inputs of each signature's request.
_INPUTS = {
    "serving_default": {"inputs": _TEXTS},
    "translate_n_best": {"inputs": _TEXTS},
    "translate_ids": {"source_ids": _IDS},
    "score": {"inputs": _TEXTS, "targets": _TEXTS},
    "encode": {"source_ids": _IDS},
    "attend": {"inputs": _TEXTS, "targets": _TEXTS},
}


def write_warmup_requests(version, max_batch_size):
    """Writes a request for each signature into a version's `assets.extra`.

    Args:
        version: The version's folder.
        max_batch_size: Rows that a request may have.
    """
    # As late as this, since it loads gRPC.
    from tensorflow_serving.apis import predict_pb2
    from tensorflow_serving.apis import prediction_log_pb2

    path = version / _PATH
    path.parent.mkdir()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, inputs in _INPUTS.items():
            request = predict_pb2.PredictRequest()
            # TF-Serving puts in the name that it serves the model under.
            request.model_spec.signature_name = signature
            for name, value in inputs.items():
                dtype = tf.int32 if name == "source_ids" else tf.string
                rows = tf.make_tensor_proto(value[:max_batch_size], dtype)
                request.inputs[name].CopyFrom(rows)
            log = prediction_log_pb2.PredictLog(request=request)
            writer.write(
                prediction_log_pb2.PredictionLog(predict_log=log).SerializeToString()
            )
