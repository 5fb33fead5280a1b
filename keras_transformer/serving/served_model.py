"""A SavedModel with the interface that the server needs."""

import contextlib
import itertools
import math
import os
import pathlib
import re

from google.protobuf import json_format

from keras_transformer.errors import NOT_FINITE, ModelError
from keras_transformer.export.load import load_saved_model
from keras_transformer.saving.names import newest_version
from keras_transformer.serving.limits import RequestError, invalid

_WARM_UP_TEXTS = [b"a", b"a b c d e f g"]
# An export with `jit_compile` compiles programs for a single row of these lengths. All
# signatures that translate share them.
_COMPILED_LENGTHS = (16, 32, 48, 64)


class ServedModel:
    """A version of an export, the newest at the time of loading.

    Args:
        folder: `pathlib.Path` of `saved_models/NAME` or of one version's folder.
        name: Name in URLs. If `None`, the folder's name is used.
        allow_unsafe: Whether to load all versions without checks. An unchecked
            SavedModel can run any code.

    Attributes:
        name: Name in URLs.
        version: int.
        inputs: Mapping of each signature's name to its inputs, a mapping of names to
            `"string"` or `"int32"` (see `parse_request`).
        limits: `ExportLimits`.
        metadata: TF-Serving's description of the signatures, as JSON values.

    Raises:
        ModelError: If there is no export or it cannot be loaded.
    """

    def __init__(self, folder, name=None, allow_unsafe=False):
        path = newest_version(folder) if folder.is_dir() else None
        if path is None:
            raise ModelError(
                f"{folder}: not a SavedModel. Create one with keras-transformer export"
            )
        # "." has no name, and versions inside a folder may be links.
        named = path.resolve() if path == folder else path
        # A version's folder may have been copied under a name that is not a number.
        is_version = named.name.isdecimal()
        self.version = int(named.name) if is_version else 1
        self._folder = folder
        # A symbolic link gives its own name, which its target does not change.
        is_alone = is_version and path == folder
        named_folder = named.parent if is_alone else os.path.abspath(folder)
        self.name = name or pathlib.Path(named_folder).name
        if not re.fullmatch(r"[^/:{}]+", self.name):
            raise ModelError(
                f"model name {self.name!r}: must not be empty or contain / : {{ or }}, "
                "because it is part of URLs. Choose another name with --name"
            )
        self._allow_unsafe = allow_unsafe
        # Taken before loading, so that later changes of the file are noticed.
        self._identity = _identity(path)
        self._loaded, self.limits = load_saved_model(path, allow_unsafe)
        self._signatures = dict(self._loaded.signatures)
        self.inputs = {
            signature: {
                name: spec.dtype.name
                for name, spec in function.structured_input_signature[1].items()
            }
            for signature, function in self._signatures.items()
        }
        definition = _definition(path)
        # Whether XLA compiles a function of the export.
        self._is_compiled = any(
            each.attr["_XlaMustCompile"].b
            for each in definition.graph_def.library.function
        )
        signatures = {
            name: json_format.MessageToDict(
                signature,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
            )
            for name, signature in definition.signature_def.items()
        }
        self.metadata = {"signature_def": {"signature_def": signatures}}

    def find_replacement(self):
        """Returns the identity and the size in bytes of the version to serve instead.

        It is the newest version: a newer one, or an older one if the served version was
        deleted, or another export with the same number. Returns `None` if the served
        version is the newest.
        """
        # Other processes may write or delete versions at the same time.
        with contextlib.suppress(OSError):
            path = newest_version(self._folder)
            if path not in (None, self._folder) and _identity(path) != self._identity:
                files = [file for file in path.rglob("*") if file.is_file()]
                return _identity(path), sum(file.stat().st_size for file in files)
        return None

    def reload(self):
        """Returns a `ServedModel` of the newest version."""
        return ServedModel(self._folder, self.name, self._allow_unsafe)

    def can_merge(self, signature):
        """Returns whether rows of several requests can share a batch.

        They can if rows are texts and outputs are not padded to the longest row.
        """
        axes = itertools.chain(*self._output_axes(signature))
        return {*self.inputs[signature].values()} == {"string"} and None not in axes

    def estimate_values(self, signature, columns):
        """Estimates the number of values in a response before it is computed.

        An output axis of unknown length is assumed to be as long as a row of input ids,
        as in the signature `encode`. Texts are tokenized only in the graph, so their
        words are counted. A text has at least as many subwords as words.

        Returns:
            The number, an int.
        """
        length = min(map(self._estimate_length, columns.values()))
        sizes = [
            math.prod(n or length for n in axes)
            for axes in self._output_axes(signature)
        ]
        return len(next(iter(columns.values()))) * sum(sizes)

    def _output_axes(self, signature):
        """Returns the lengths of each output's axes after the rows, or `None`s."""
        outputs = self._signatures[signature].structured_outputs.values()
        return [each.shape[1:] for each in outputs]

    def _estimate_length(self, column):
        """Returns the length of the longest row, in ids or in words of a text."""
        # Exports truncate longer rows.
        limit = self.limits.max_source_length
        if isinstance(column[0], list):
            return min(len(column[0]), limit)
        length = max(len(text.split()) for text in column)
        return min(length, limit - 1)  # with room for the end id

    def warm_up_requests(self):
        """Yields (signature, columns) of small requests, one or more per signature.

        If XLA compiles the search of single rows, there is a request for each program.
        """
        for signature, inputs in self.inputs.items():
            if "string" in inputs.values():
                yield signature, dict.fromkeys(inputs, _WARM_UP_TEXTS)
            else:
                for length in (3, *(_COMPILED_LENGTHS if self._is_compiled else ())):
                    row = [4] * (length - 1) + [self.limits.end_id]
                    yield signature, {name: [row] for name in inputs}

    def run(self, signature, columns):
        """Runs a signature on the columns from `parse_request`, and returns its arrays.

        Raises a `RequestError` if the graph rejects the columns, the model computes
        NaN, or memory is exhausted.
        """
        import tensorflow as tf

        kinds = self.inputs[signature]
        try:
            outputs = self._signatures[signature](
                **{
                    name: tf.constant(values, kinds[name])
                    for name, values in columns.items()
                }
            )
            return {name: outputs[name].numpy() for name in sorted(outputs)}
        except tf.errors.InvalidArgumentError as error:
            message = _assertion(str(error))
            if message == NOT_FINITE:
                raise RequestError(500, message, "model") from error
            raise invalid(message) from error
        except tf.errors.ResourceExhaustedError as error:
            raise RequestError(503, "Out of memory", "memory", 5) from error


def _identity(path):
    """Returns a tuple that differs between exports, also if their number is equal."""
    # Some network file systems change a file's inode.
    stat = (path / "saved_model.pb").stat()
    return path.name, stat.st_mtime_ns, stat.st_size


def _assertion(message):
    """Returns the text of a graph's assertion from an error message."""
    found = re.search(r"assertion failed: \[([^\]]*)\]", message)
    return found[1] if found else "The model rejects these inputs"


def _definition(path):
    """Returns the `MetaGraphDef` of a SavedModel: its graph and its signatures."""
    from tensorflow.core.protobuf import saved_model_pb2

    content = (path / "saved_model.pb").read_bytes()
    return saved_model_pb2.SavedModel.FromString(content).meta_graphs[0]
