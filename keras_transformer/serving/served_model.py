"""The signatures of a SavedModel, for the server."""

import json
import re

from google.protobuf import json_format

from keras_transformer.errors import ModelError
from keras_transformer.saving.saved_model import load_saved_model
from keras_transformer.saving.saved_model import max_batch_size
from keras_transformer.saving.saved_model import newest_version
from keras_transformer.serving.errors import RequestError
from keras_transformer.serving.errors import invalid
from keras_transformer.serving.protocol import Input


class ServedModel:
    """The newest version of an export.

    Args:
        folder: `saved_models/NAME`, or one version's folder.
        name: Name in URLs. If `None`, the folder's.

    Attributes:
        name: Name in URLs.
        version: int.
        inputs: Mapping of each signature's name to its inputs, name to `Input`.
        metadata: TF-Serving's description of the signatures, for JSON.
        max_batch_size: Maximum rows per batch, `None` if unknown.

    Raises:
        ModelError: If there is no export, or it cannot be loaded.
    """

    def __init__(self, folder, name=None):
        path = newest_version(folder) if folder.is_dir() else None
        if path is None:
            raise ModelError(f"{folder}: no SavedModel here; export writes one")
        # `folder` may be a copy of a version under any name.
        is_version = path.name.isdecimal()
        self.version = int(path.name) if is_version else 1
        self.name = name or (path.parent if is_version else path).resolve().name
        self._loaded = load_saved_model(path)
        self.max_batch_size = max_batch_size(path)
        self._signatures = dict(self._loaded.signatures)
        self.inputs = {
            signature: _inputs(function)
            for signature, function in self._signatures.items()
        }
        self.metadata = _metadata(path)

    def merges(self, signature):
        """Returns whether rows of several requests can share a batch.

        They can if rows are texts and no output is padded to the longest of its batch.
        """
        outputs = self._signatures[signature].structured_outputs.values()
        kinds = self.inputs[signature].values()
        return all(kind == Input("string", 1) for kind in kinds) and all(
            None not in output.shape[1:] for output in outputs
        )

    def run(self, signature, columns):
        """Runs a signature on the columns from `parse_request`.

        Returns:
            Mapping of output names to arrays.

        Raises:
            RequestError: If the graph refuses the columns or memory is exhausted.
        """
        import tensorflow as tf

        kinds = self.inputs[signature]
        try:
            outputs = self._signatures[signature](
                **{
                    name: tf.constant(values, kinds[name].dtype)
                    for name, values in columns.items()
                }
            )
            return {name: outputs[name].numpy() for name in sorted(outputs)}
        except tf.errors.InvalidArgumentError as error:
            raise invalid(_assertion(str(error))) from error
        except tf.errors.ResourceExhaustedError as error:
            raise RequestError(503, "Out of memory", "memory", 5) from error


def _inputs(function):
    _, by_name = function.structured_input_signature
    return {
        name: Input(spec.dtype.name, len(spec.shape)) for name, spec in by_name.items()
    }


def _assertion(message):
    """Returns the text of a graph's assertion without the rest of the message."""
    found = re.search(r"assertion failed: \[([^\]]*)\]", message)
    return found[1] if found else "The model refuses these inputs"


def _metadata(path):
    from tensorflow.core.protobuf import saved_model_pb2

    model = saved_model_pb2.SavedModel()
    model.ParseFromString((path / "saved_model.pb").read_bytes())
    signatures = {}
    for name, definition in model.meta_graphs[0].signature_def.items():
        signatures[name] = json.loads(
            json_format.MessageToJson(
                definition,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
            )
        )
    return {"signature_def": {"signature_def": signatures}}
