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


def build_transformer(arguments, arrays, num_decoder_layers=0):
    """Builds a `Transformer`, unless the weight file is far too small for it."""
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
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    return model


class StreamOrder:
    """Permutation from sines-first order to alternating sines and cosines."""

    def __init__(self, d_model):
        if d_model % 2:
            raise ModelError(f"d_model must be even. Received: {d_model}")
        # Dimension j of the new stream is dimension order[j] of the old one.
        self._order = np.arange(d_model).reshape(2, -1).T.ravel()
        self._inverse = np.argsort(self._order)

    def reorder(self, array, reads=False, writes=False):
        """Reorders an array of another toolkit for this package.

        `reads` reorders the first axis, of kernels `[d_model, outputs]`. `writes`
        reorders the last axis, of embeddings, vectors and kernels `[inputs, d_model]`.
        """
        return _take(array, self._order, reads, writes)

    def restore(self, array, reads=False, writes=False):
        """Inverts `reorder`: reorders an array of this package for other toolkits."""
        return _take(array, self._inverse, reads, writes)


def _take(array, order, reads, writes):
    if reads:
        array = array[order]
    return array[..., order] if writes else array


def set_layers(stack, read):
    """Sets the weights of all layers of an `Encoder` or `Decoder`.

    `read(number, part, shape)` returns a kernel `[inputs, outputs]`, or a scale, and a
    bias. `part` names a projection or an `AddNorm`, such as `"self_attention.query"`.
    """
    for number, layer in enumerate(stack.layers):
        order = StreamOrder(layer.self_attention.output_dense.kernel.shape[-1])
        for part, dense, usage in _denses(layer):
            kernel, bias = read(number, part, dense.kernel.shape)
            dense.kernel.assign(order.reorder(kernel, **usage))
            writes = usage.get("writes", False)
            dense.bias.assign(order.reorder(bias, writes=writes))
        for part in _add_norms(layer):
            norm = getattr(layer, part).layer_norm
            set_norm(norm, *read(number, part, norm.gamma.shape))


def set_norm(norm, scale, bias):
    """Sets the scale and the bias of a layer normalization of the stream."""
    order = StreamOrder(len(scale))
    norm.gamma.assign(order.reorder(scale, writes=True))
    norm.beta.assign(order.reorder(bias, writes=True))


def get_layers(stack):
    """Yields the weights of all layers, in the dimension order of other toolkits."""
    for number, layer in enumerate(stack.layers):
        order = StreamOrder(layer.self_attention.output_dense.kernel.shape[-1])
        for part, dense, usage in _denses(layer):
            kernel = to_numpy(dense.kernel)
            bias = to_numpy(dense.bias) if dense.use_bias else np.zeros_like(kernel[0])
            writes = usage.get("writes", False)
            yield (
                *(number, part, order.restore(kernel, **usage)),
                order.restore(bias, writes=writes),
            )
        for part in _add_norms(layer):
            yield number, part, *get_norm(getattr(layer, part).layer_norm)


def get_norm(norm):
    """Returns a normalization's scale and bias, in the order of other toolkits."""
    order = StreamOrder(norm.gamma.shape[-1])
    return tuple(
        order.restore(to_numpy(each), writes=True) for each in (norm.gamma, norm.beta)
    )


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
    """Sets the embeddings and the output projection of an imported model.

    The embedding of the padding id is set to zeros, and so is that of the start id
    unless `start` is given.
    """
    order = StreamOrder(model.d_model)
    embedding = model.token_embedding

    def rows(matrix):
        filled = np.zeros((model.vocabulary_size, model.d_model), np.float32)
        filled[: len(matrix)] = order.reorder(matrix, writes=True)
        return filled

    vectors = rows(target)
    if start is not None:
        vectors[-1] = order.reorder(start, writes=True)
    embedding.embeddings.assign(vectors)
    if source is not None:
        model.source_embedding.embeddings.assign(rows(source))
    if output is not None:
        # The matrix reads the stream, but is stored transposed. So its last axis is
        # reordered.
        embedding.output_matrix.assign(order.reorder(output, writes=True))
    if bias is not None:
        embedding.bias.assign(bias)


def _denses(layer):
    """Yields each projection's name, its `Dense` layer, and arguments of `reorder`.

    The arguments state whether the projection reads or writes to the stream.
    """
    for attention in _ATTENTIONS:
        if hasattr(layer, attention):
            for role in _PROJECTIONS:
                dense = getattr(getattr(layer, attention), f"{role}_dense")
                usage = {"writes": True} if role == "output" else {"reads": True}
                yield f"{attention}.{role}", dense, usage
    yield "feed_forward.inner", layer.feed_forward.inner_dense, {"reads": True}
    yield "feed_forward.outer", layer.feed_forward.outer_dense, {"writes": True}


def _add_norms(layer):
    """Yields the names of the layer's `AddNorm`s."""
    for part in (*_ATTENTIONS, "feed_forward"):
        if hasattr(layer, part):
            yield f"{part}_add_norm"
