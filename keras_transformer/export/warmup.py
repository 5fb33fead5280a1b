"""Warm-up requests that TF-Serving runs before it serves a version."""

import logging
import pathlib

import tensorflow as tf

from keras_transformer.errors import install_hint

_PATH = pathlib.Path("assets.extra") / "tf_serving_warmup_requests"
_TEXTS = ["a", "a b c d e f g"]
# Any two subwords, which the end id follows.
_IDS = [[4, 5]]
# The inputs of each signature's request.
_INPUTS = {
    "serving_default": {"inputs": _TEXTS},
    "translate_n_best": {"inputs": _TEXTS},
    "translate_ids": {"source_ids": _IDS},
    "score": {"inputs": _TEXTS, "targets": _TEXTS},
    "encode": {"source_ids": _IDS},
    "attend": {"inputs": _TEXTS, "targets": _TEXTS},
}

logger = logging.getLogger(__name__)


def write_warmup_requests(version, limits):
    """Writes one request per signature to the folder `assets.extra` of a version.

    If the package tensorflow-serving-api is not installed, no requests are written and
    a warning is logged.
    """
    path = version / _PATH
    path.parent.mkdir(exist_ok=True)
    try:
        # Imported here because it loads gRPC.
        from tensorflow_serving.apis import predict_pb2, prediction_log_pb2
    except ImportError:
        logger.warning(
            "no warm-up requests for TF-Serving were written, because "
            f"tensorflow-serving-api is not installed: {install_hint('serving-api')}"
        )
        return
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, inputs in _INPUTS.items():
            request = predict_pb2.PredictRequest()
            # TF-Serving adds the name under which it serves the model.
            request.model_spec.signature_name = signature
            for name, value in inputs.items():
                dtype = tf.string
                if name == "source_ids":
                    value, dtype = [[*row, limits.end_id] for row in value], tf.int32
                rows = tf.make_tensor_proto(value[: limits.max_batch_size], dtype)
                request.inputs[name].CopyFrom(rows)
            log = prediction_log_pb2.PredictLog(request=request)
            writer.write(
                prediction_log_pb2.PredictionLog(predict_log=log).SerializeToString()
            )
