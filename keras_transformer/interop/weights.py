"""Conversion of weights between other toolkits and a `Transformer`.

In a positional encoding, other toolkits put all sines before all cosines. This package
alternates them, as in section 3.5 of the paper. So the `d_model` dimensions of the
residual stream must be permuted. The stream consists of the vectors that pass from the
embeddings through all residual connections to the logits. The permutation applies to
the columns of matrices that write to the stream, the rows of matrices that read it,
and the scales and biases of its layer normalizations. Logits do not change.
"""

import keras
import numpy as np

from keras_transformer.arguments import count_parameters
from keras_transformer.errors import ModelError

_ATTENTIONS = ("self_attention", "cross_attention")
_PROJECTIONS = ("query", "key", "value", "output")
# Number of rows of an embedding matrix that are assigned at a time.
_BLOCK = 4096


def build_transformer(arguments, arrays, num_decoder_layers=0):
    """Builds a `Transformer`, unless the weight file is far too small for it."""
    from keras_transformer.saving.keras_file import build_for_loading
    from keras_transformer.transformer import Transformer

    # The file may lack the embeddings of padding and start. So the vocabulary is
    # counted without them. The factor 2 allows for missing rows in other matrices.
    settings = {**arguments, "vocabulary_size": arguments["vocabulary_size"] - 2}
    if num_decoder_layers:
        settings["variations"] = {
            **(settings["variations"] or {}),
            "num_decoder_layers": num_decoder_layers,
        }
    if count_parameters(settings) > 2 * arrays.num_weights:
        raise ModelError(
            f"{arrays.path}: the settings describe more weights than the file contains"
        )
    model = Transformer(**arguments)
    build_for_loading(model)
    return model


def interleave(array, axis=-1):
    """Reorders an axis of the stream from sines first to alternating with cosines."""
    order = np.arange(array.shape[axis]).reshape(2, -1).T.ravel()
    return np.take(array, order, axis)


def sines_first(array, axis=-1):
    """Inverts `interleave`, for arrays of this package that other toolkits read."""
    if array.shape[axis] % 2:
        raise ModelError(f"d_model must be even. Received: {array.shape[axis]}")
    order = np.arange(array.shape[axis]).reshape(-1, 2).T.ravel()
    return np.take(array, order, axis)


def set_layers(stack, read):
    """Sets the weights of all layers of an `Encoder` or `Decoder`.

    `read(number, part, shape)` returns a kernel `[inputs, outputs]`, or a scale, and a
    bias. `part` names a projection or an `AddNorm`, such as `"self_attention.query"`.
    """
    for number, layer in enumerate(stack.layers):
        for part, dense, axis in projections(layer):
            kernel, bias = read(number, part, dense.kernel.shape)
            dense.kernel.assign(interleave(kernel, axis))
            dense.bias.assign(interleave(bias) if axis == -1 else bias)
        for part in _add_norms(layer):
            norm = getattr(layer, part).layer_norm
            set_norm(norm, *read(number, part, norm.gamma.shape))


def set_norm(norm, scale, bias):
    """Sets the scale and the bias of a layer normalization of the stream."""
    norm.gamma.assign(interleave(scale))
    norm.beta.assign(interleave(bias))


def get_layers(stack):
    """Yields the weights of all layers, in the dimension order of other toolkits."""
    for number, layer in enumerate(stack.layers):
        for part, dense, axis in projections(layer):
            kernel = to_numpy(dense.kernel)
            bias = to_numpy(dense.bias) if dense.use_bias else np.zeros_like(kernel[0])
            bias = sines_first(bias) if axis == -1 else bias
            yield number, part, sines_first(kernel, axis), bias
        for part in _add_norms(layer):
            yield number, part, *get_norm(getattr(layer, part).layer_norm)


def get_norm(norm):
    """Returns a normalization's scale and bias, in the order of other toolkits."""
    return tuple(sines_first(to_numpy(each)) for each in (norm.gamma, norm.beta))


def to_numpy(tensor):
    """Returns a tensor as a float32 array."""
    return keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32"))


def position_vectors(layer, d_model, length):
    """Returns positional encodings, `[length, d_model]`, in this package's order."""
    limit = min(length, layer.max_length) if layer.kind == "learned" else length
    rows = to_numpy(layer(np.zeros((1, limit, d_model), np.float32)))[0]
    # Like the layer, use the last learned position for all further ones.
    return np.pad(rows, ((0, length - limit), (0, 0)), mode="edge")


def set_embeddings(model, source, target, output=None, bias=None, start=None):
    """Sets the embeddings and the output projection. `start` is the start id's vector.

    The vector of the padding id is zeros, and so is that of the start id by default.
    """
    embedding = model.token_embedding
    _assign_rows(embedding.embeddings, target, start)
    if source is not None:
        _assign_rows(model.source_embedding.embeddings, source)
    if output is not None:
        # The matrix reads the stream, but is stored transposed.
        _assign_rows(embedding.output_matrix, output)
    if bias is not None:
        embedding.bias.assign(bias)


def _assign_rows(variable, matrix, last=None):
    """Assigns the first rows of a matrix, and its last one. All others become 0.

    TensorFlow assigns blocks of rows, because the largest matrices of a model should
    not be copied as a whole.
    """
    is_tensorflow = keras.config.backend() == "tensorflow"
    values = variable.value if is_tensorflow else np.zeros(variable.shape, np.float32)
    size = values.shape[0]
    for first in range(0, size, _BLOCK):
        rows = np.zeros((min(_BLOCK, size - first), values.shape[1]), np.float32)
        given = matrix[first : first + _BLOCK]
        rows[: len(given)] = interleave(given)
        if last is not None and first + len(rows) == size:
            rows[-1] = interleave(last)
        if is_tensorflow:
            values[first : first + len(rows)].assign(rows)
        else:
            values[first : first + len(rows)] = rows
    if not is_tensorflow:
        variable.assign(values)


def projections(layer):
    """Yields each projection's name, its `Dense` layer, and its kernel's stream axis.

    Kernels `[inputs, outputs]` read the stream on axis 0, or write to it on axis -1.
    """
    for attention in _ATTENTIONS:
        if hasattr(layer, attention):
            for role in _PROJECTIONS:
                dense = getattr(getattr(layer, attention), f"{role}_dense")
                yield f"{attention}.{role}", dense, -1 if role == "output" else 0
    yield "feed_forward.inner", layer.feed_forward.inner_dense, 0
    yield "feed_forward.outer", layer.feed_forward.outer_dense, -1


def _add_norms(layer):
    """Yields the names of the layer's `AddNorm`s."""
    for part in (*_ATTENTIONS, "feed_forward"):
        if hasattr(layer, part):
            yield f"{part}_add_norm"
