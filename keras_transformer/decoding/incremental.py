"""Decoding with a KV cache, one position at a time, for inference only.

`IncrementalDecoder.step` applies the layers of `Transformer.decode` to one position, by
`DecoderLayer.transform` with attention to a cache. Its arrays are small, so the number
of operations determines how long a step takes. Activations therefore have two axes,
`[batch * beam_size, width]`. With three, every matrix product would need reshape
operations. With `arrange_weights`, one product computes queries, keys, and values.
"""

from typing import Any, NamedTuple

from keras import ops

from keras_transformer.decoding import cache as kv_cache
from keras_transformer.decoding.alignment import NUM_LAYERS
from keras_transformer.layers.masks import padding_mask
from keras_transformer.layers.positional_encoding import rotate
from keras_transformer.numerics.indexing import shape
from keras_transformer.numerics.matrices import (
    pack_kernel,
    packed_matmul,
    swap_middle_axes,
)
from keras_transformer.numerics.softmax import (
    mask_to_bias,
    masked_softmax,
    weighted_values,
)


class Context(NamedTuple):
    """Keys and values of the encoder's output, shared by a sentence's hypotheses."""

    # Per layer: keys [batch, num_heads, source_length, key_dim], and values
    # [batch, num_heads, source_length, value_dim].
    layers: tuple
    bias: Any  # float32 [batch, source_length] (see `mask_to_bias`)


class LayerWeights(NamedTuple):
    """Kernels of a decoder layer in the compute dtype, possibly packed (`pack_kernel`).

    If a field is `None`, the layer's own kernel is used.
    """

    qkv: Any = None  # the fused kernel of queries, keys, and values
    attention_output: Any = None
    cross_query: Any = None
    cross_output: Any = None
    inner: Any = None
    outer: Any = None


class Weights(NamedTuple):
    """Kernels of all decoder layers and of the output projection."""

    layers: tuple  # a LayerWeights per layer
    output: Any = None  # float32 [d_model, num_outputs], or packed


def arrange_weights(model, packed=False):
    """Casts, fuses, and packs the decoder's kernels once for all steps of a search.

    One fused QKV product replaces three products and is large enough that TensorFlow
    divides it between two threads. `output_kernel` transposes the output matrix once
    here, instead of at every step. Call this inside the compiled function: kernels from
    outside would become constants, which do not change with the model's weights.

    If `packed` is true, `pack_kernel` is applied to all kernels, which speeds up single
    sentences under XLA. If not, only `qkv` and `output` are set. Layers that are
    quantized or have biases in self-attention use their own kernels.
    """

    def cast_kernel(dense):
        # Outside `call`, Keras does not cast weights to the compute dtype.
        return ops.cast(dense.kernel, dense.compute_dtype)

    def arrange_layer(layer):
        denses = decoder_denses(layer)
        has_biases = layer.self_attention.use_bias
        if has_biases or any(dense.quantization_mode for dense in denses):
            return LayerWeights()
        qkv = ops.concatenate([cast_kernel(dense) for dense in denses[:3]], axis=-1)
        if not packed:
            return LayerWeights(qkv)
        others = (pack_kernel(cast_kernel(dense)) for dense in denses[3:])
        return LayerWeights(pack_kernel(qkv), *others)

    output = model.token_embedding.output_kernel()
    return Weights(
        tuple(map(arrange_layer, model.decoder.layers)),
        pack_kernel(output) if packed else output,
    )


def decoder_denses(layer):
    """Returns the `Dense` layers that `step` applies in one decoder layer, in order.

    `LayerWeights` has the same order, with the first three fused in `qkv`. The list
    lacks the projections of the encoder's output, which `begin` applies.
    """
    return [
        layer.self_attention.query_dense,
        layer.self_attention.key_dense,
        layer.self_attention.value_dense,
        layer.self_attention.output_dense,
        layer.cross_attention.query_dense,
        layer.cross_attention.output_dense,
        layer.feed_forward.inner_dense,
        layer.feed_forward.outer_dense,
    ]


class IncrementalDecoder:
    """Decoder of a `Transformer` that computes one position at a time.

    Args:
        model: `Transformer`.
        weights: `Weights` (see `arrange_weights`). If `None`, the kernels of the layers
            are used.
        encode: Function from source ids to the encoder's output. Defaults to
            `model.encode`.
    """

    # `step` returns unnormalized logits, which beam search and sampling normalize.
    returns_log_probs = False
    added_scores = None
    reorder = staticmethod(kv_cache.reorder)

    def __init__(self, model, weights=None, encode=None):
        self.model = model
        self.weights = weights or Weights((LayerWeights(),) * len(model.decoder.layers))
        self.encode = encode or (lambda ids: model.encode(ids, training=False))

    def begin(self, source_ids, beam_size=1, max_length=None):
        """Encodes sources `[batch, source_length]` to an empty `Cache` and a `Context`.

        `max_length` is the capacity of the cache, in positions, for XLA and JAX. If it
        is `None`, the cache grows.
        """
        model = self.model
        encoder_output = self.encode(source_ids)
        source_mask = padding_mask(source_ids, model.pad_id)
        # If a source is all padding, a softmax over masked logits would average the
        # values, whereas the attention layers in `Transformer.decode` return 0. Setting
        # the values to 0 gives the same result.
        has_tokens = ops.any(source_mask, axis=1)[:, None, None, None]

        def project(layer):
            key, value = layer.cross_attention.project_key_value(encoder_output)
            return key, ops.where(has_tokens, value, ops.zeros_like(value))

        layers = tuple(map(project, model.decoder.layers))
        cache = kv_cache.empty_cache(
            [layer.self_attention for layer in model.decoder.layers],
            shape(source_ids)[0],
            beam_size,
            max_length,
            model.attention_window,
            has_distances=model.positions == "relative",
        )
        return cache, Context(layers, mask_to_bias(source_mask))

    def step(self, ids, cache, context, index, attention=None):
        """Decodes the tokens at position `index`, int32 `[batch * beam_size, 1]`.

        Returns the logits of the next tokens, float32 `[batch * beam_size,
        num_outputs]`, and the extended cache. If `attention` is a list, the mean
        attention to the source (see `alignment_scores`), float32 `[batch, beam_size,
        source_length]`, is appended to it.
        """
        model, beam_size = self.model, cache.beam_size
        # `place` is the position in a cache of fixed capacity.
        cache, place = kv_cache.extend(cache, index, model.attention_window)
        # All layers share one slot layout and therefore the mask biases.
        biases, source_biases = cache.biases(), [context.bias[:, None, None]]
        distances = None
        if model.positions == "relative":
            distances = cache.distances(index, place)
        caches, cross_scores = [], []

        def decode(layer, x, kernels, layer_cache, source):
            def attend_self(y):
                attention = layer.self_attention
                query, key, value = _project(attention, y, beam_size, kernels.qkv)
                if attention.positions == "rotary":
                    here = ops.reshape(index, (1,))
                    query, key = rotate(query, here), rotate(key, here)
                caches.append(layer_cache.append(key, value, place))
                parts = caches[-1].parts()
                if distances is not None:
                    parts = _add_relative(attention, parts, distances)
                y = _attend(attention, query, parts, biases)
                return _dense(attention.output_dense, y, kernels.attention_output)

            def attend_cross(y):
                attention = layer.cross_attention
                query = _dense(attention.query_dense, y, kernels.cross_query)
                query = _split_heads(query, beam_size, attention.num_heads)
                if needs_scores:
                    logits = attention.attention_logits(query, source[0])
                    cross_scores.append(masked_softmax(logits + source_biases[0]))
                y = _attend(attention, query, [source], source_biases)
                return _dense(attention.output_dense, y, kernels.cross_output)

            def feed_forward(y):
                y = _dense(layer.feed_forward.inner_dense, y, kernels.inner)
                return _dense(layer.feed_forward.outer_dense, y, kernels.outer)

            return layer.transform(x, attend_self, attend_cross, feed_forward)

        needs_scores = attention is not None
        x = model.embed_target(ids, start_index=index, training=False)
        x = ops.reshape(x, (-1, x.shape[-1]))
        parts = self.weights.layers, cache.layers, context.layers
        for layer, *own in zip(model.decoder.layers, *parts, strict=True):
            x = decode(layer, x, *own)
        if model.decoder.final_norm is not None:
            x = model.decoder.final_norm(x)
        if needs_scores:
            last = ops.stack(cross_scores[-NUM_LAYERS:], axis=1)
            attention.append(ops.mean(last, axis=(1, 2)))
        return self._logits(x), cache._replace(layers=tuple(caches))

    def _logits(self, x):
        if self.weights.output is None:
            return self.model.token_embedding(x, reverse=True)
        logits = packed_matmul(ops.cast(x, "float32"), self.weights.output)
        return self.model.token_embedding.add_bias(logits)

    def compact(self, cache):
        return kv_cache.compact(cache, self.model.attention_window)

    def grow(self, cache):
        return kv_cache.grow(cache, self.model.attention_window)


def _dense(dense, x, kernel=None):
    """Applies a `Dense` layer, with `kernel` in place of its own unless `None`."""
    if kernel is None:
        return dense(x)
    y = packed_matmul(x, kernel)
    if dense.bias is not None:
        y = y + ops.cast(dense.bias, y.dtype)
    return y if dense.activation is None else dense.activation(y)


def _project(attention, x, beam_size, qkv=None):
    """Returns queries, keys, and values `[batch, num_heads, beam_size, dim]`."""
    heads = attention.num_heads
    if qkv is None:
        denses = attention.query_dense, attention.key_dense, attention.value_dense
        return [_split_heads(dense(x), beam_size, heads) for dense in denses]
    x = packed_matmul(x, qkv)
    if attention.value_dim in (None, attention.key_dim):
        return ops.split(_split_heads(x, beam_size, 3 * heads), 3, axis=1)
    width = heads * attention.key_dim
    parts = ops.split(x, [width, 2 * width], axis=-1)
    return [_split_heads(part, beam_size, heads) for part in parts]


def _attend(attention, query, parts, biases):
    """Computes attention to keys and values in one or two parts.

    `query` is `[batch, num_heads, beam_size, key_dim]`. Each part has keys and values
    `[batch, num_heads, slots, dim]`, and a bias, float32 `[batch, 1, beam_size or 1,
    slots]`, or `None`. Returns `[batch * beam_size, num_heads * value_dim]`.
    """
    logits = []
    for (key, _), bias in zip(parts, biases, strict=True):
        part = ops.cast(attention.attention_logits(query, key), "float32")
        logits.append(part if bias is None else part + bias)
    x = swap_middle_axes(weighted_values(logits, [value for _, value in parts]))
    return ops.reshape(x, (-1, x.shape[2] * x.shape[3]))


def _add_relative(attention, parts, distances):
    """Adds the vectors of distances to the keys and values of all heads."""

    def add(part, here):
        vectors = attention.relative_key_value(here, attention.compute_dtype)
        return tuple(one + other for one, other in zip(part, vectors, strict=True))

    return [add(*each) for each in zip(parts, distances, strict=True)]


def _split_heads(x, beam_size, num_heads):
    """Splits `[batch * beam, heads * dim]` into `[batch, heads, beam, dim]`."""
    dim = x.shape[-1] // num_heads
    return swap_middle_axes(ops.reshape(x, (-1, beam_size, num_heads, dim)))
