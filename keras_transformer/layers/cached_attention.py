"""Attention step by step, for decoding: part of `MultiHeadAttention`."""

from typing import Any
from typing import NamedTuple

import keras
from keras import ops

from keras_transformer.layers import decoding_cache
from keras_transformer.numerics.matrices import by_rows
from keras_transformer.numerics.matrices import product
from keras_transformer.numerics.softmax import exponentials_of_parts
from keras_transformer.numerics.softmax import logit_bias
from keras_transformer.numerics.softmax import softmax_of_few


class Visible(NamedTuple):
    """What queries see of a cache, the same for all layers of a stack."""

    # For each part of the cache float32 [batch or 1, 1, queries, slots], see
    # `logit_bias`; None: all.
    biases: Any


class CachedAttention:
    """What `MultiHeadAttention` does with keys and values that are there already.

    No gradient flows through it. A step has few numbers and many operations, whose
    number decides how long it takes: sizes are Python's wherever they are known.
    """

    # Positions that self-attention sees; None: all.
    window = None

    def call_with_cache(
        self, query, cache, start_index, visible=None, beam_size=1, kernel=None
    ):
        """Causal self-attention of the positions from `start_index` on.

        Args:
            query: `[batch, beam_size * target_length, width]`, the new positions;
                those of a hypothesis follow each other. Or `[batch * beam_size,
                width]`, one position of each.
            cache: From `init_cache` or the last call.
            start_index: Position of the first query, scalar int32.
            visible: From `visible_slots`. None: all positions up to its own, of a
                sentence with one hypothesis.
            beam_size: Hypotheses of a sentence.
            kernel: From `joined_kernel`, its matrix maybe `in_blocks`, for many calls.
                None: three products.

        Returns:
            As `query`, `output_dim` wide, and the cache with the new positions.
        """
        count = _num_queries(query, beam_size)
        queries, *new = self._project_new(query, count, kernel)
        cache = self._append(new, cache, start_index, beam_size)
        if visible is None:
            num_slots = decoding_cache.num_slots(cache)
            visible = self.visible_slots(cache, num_slots, 1, count, start_index)
        context = self._attend(queries, decoding_cache.parts(cache), visible.biases)
        output = self.output_dense(_joined_as(query, context))
        return output, self._trimmed(cache, beam_size)

    def call_with_context(self, query, key_value, mask, beam_size=1):
        """Attention over an encoder's output, whose keys and values are there.

        Args:
            query: `[batch, queries, width]` or `[batch * beam_size, width]`.
            key_value: From `project_key_value`.
            mask: `[batch, source_length]`, bool, True = token, or for many calls
                `source_bias` of it; None: all are. Each row has a token, or values
                that are zero.
            beam_size: Queries of each row where `query` has two axes.

        Returns:
            As `query`, `output_dim` wide.
        """
        count = _num_queries(query, beam_size)
        queries = self._new_heads(self.query_dense(query), count)
        context = self._attend(queries, [key_value], [source_bias(mask)])
        return self.output_dense(_joined_as(query, context))

    def input_denses(self):
        """What makes queries, keys and values."""
        return [self.query_dense, self.key_dense, self.value_dense]

    def joined_kernel(self):
        """The matrices of queries, keys and values beside each other, and biases.

        Returns:
            Mapping of `"kernel"`, `[width, columns of all three]`, and, where the layer
            has biases, `"bias"`, `[columns of all three]`. None of a quantized layer.
        """
        denses = self.input_denses()
        if any(dense.quantization_mode for dense in denses):
            return None
        weights = {"kernel": [dense.kernel for dense in denses]}
        if self.use_bias:
            weights["bias"] = [dense.bias for dense in denses]
        return {
            name: ops.concatenate(
                [ops.cast(each, self.compute_dtype) for each in several], axis=-1
            )
            for name, several in weights.items()
        }

    def _project_new(self, x, count, joined):
        """Queries, keys and values of new positions, `[batch, num_heads, count, dim]`.

        Args:
            x: `[batch, count, width]` or `[batch * count, width]`.
            count: New positions of each sentence.
            joined: From `joined_kernel`, or None.
        """
        if joined is None:
            return [self._new_heads(dense(x), count) for dense in self.input_denses()]
        x = by_rows(lambda rows: product(rows, joined["kernel"]), x)
        if "bias" in joined:
            x = x + joined["bias"]
        if self.value_dim in (None, self.key_dim):
            return ops.split(self._new_heads(x, count, of_each=3), 3, axis=1)
        width = self.num_heads * self.key_dim
        parts = ops.split(x, [width, 2 * width], axis=-1)
        return [self._new_heads(part, count) for part in parts]

    def _attend(self, queries, parts, biases=None):
        """Attention over keys and values in one part or two.

        Args:
            queries: `[batch, num_heads, queries, key_dim]`.
            parts: Keys `[batch, num_heads, slots, key_dim]` and values of each.
            biases: float32, what is added to the logits over the slots of each part:
                `[batch or 1, 1, queries or 1, slots]` or None. None: nothing.

        Returns:
            `[batch, num_heads, queries, value_dim]`.
        """
        logits = [
            _with_bias(ops.cast(self.logits_of_heads(queries, key), "float32"), bias)
            for (key, _), bias in zip(parts, biases or [None] * len(parts), strict=True)
        ]
        values = [value for _, value in parts]
        if len(parts) == 1:
            scores = ops.cast(softmax_of_few(logits[0]), self.compute_dtype)
            return ops.matmul(scores, values[0])
        weights, totals = exponentials_of_parts(logits)
        sums = [
            ops.matmul(ops.cast(each, self.compute_dtype), value)
            for each, value in zip(weights, values, strict=True)
        ]
        return sum(sums[1:], sums[0]) / ops.cast(totals, self.compute_dtype)

    def _new_heads(self, x, count, of_each=1):
        """`[batch, num_heads, count, dim]` with `of_each` pieces of each head."""
        heads = of_each * self.num_heads
        return _swapped(ops.reshape(x, (-1, count, heads, x.shape[-1] // heads)))

    def visible_slots(
        self, cache, count, beam_size, length, start_index, ancestors=None
    ):
        """What new positions see of a cache, for `call_with_cache` of many layers.

        Args:
            cache: A layer's, before or after the call.
            count: Slots of the cache after the call.
            beam_size: Hypotheses of a sentence.
            length: New positions of each.
            start_index: Position of the first of them, scalar int32.
            ancestors: See `decoding_cache.visible_slots`.

        Returns:
            `Visible`.
        """
        in_buffer = decoding_cache.is_buffer(cache)
        seen = decoding_cache.visible_slots(
            count,
            beam_size,
            length,
            start_index if in_buffer else None,
            self.window,
            ancestors,
        )
        if seen is None:
            return Visible(None)
        bias = logit_bias(seen)[:, None]
        if in_buffer:
            return Visible([bias])
        num_settled = decoding_cache.num_settled(cache)
        return Visible([bias[..., :num_settled], bias[..., num_settled:]])

    def extend_ancestors(self, ancestors, cache, length, start_index):
        """`decoding_cache.extend_ancestors` of this layer, before `call_with_cache`."""
        position = None
        if decoding_cache.is_buffer(cache):
            beam_size = ancestors.shape[1]
            position = self._position_in_buffer(cache, beam_size, start_index)
        return decoding_cache.extend_ancestors(ancestors, length, position)

    def init_cache(self, batch_size, max_length=None, beam_size=1):
        """An empty cache for `call_with_cache`.

        Args:
            batch_size: Number of sentences, may be a scalar tensor.
            max_length: Room for so many positions in buffers of fixed size. None:
                the cache grows.
            beam_size: Hypotheses of a sentence.

        Returns:
            The cache of no positions, see `decoding_cache`.
        """
        return decoding_cache.empty_cache(
            batch_size,
            self.num_heads,
            self.key_dim,
            self.value_dim or self.key_dim,
            None if max_length is None else max_length * beam_size,
            self.compute_dtype,
        )

    def _append(self, new, cache, start_index, beam_size):
        """The cache with new keys and values, `[batch, num_heads, slots, dim]`."""
        if new[0].shape[2] != beam_size and beam_size > 1:
            new = [_positions_first(x, beam_size) for x in new]
        start_slot = self._position_in_buffer(cache, beam_size, start_index)
        return decoding_cache.append(cache, *new, start_slot * beam_size)

    def _position_in_buffer(self, cache, beam_size, position):
        return position

    def _trimmed(self, cache, beam_size):
        """What is kept of a cache after a call."""
        return cache


def source_bias(mask):
    """`[batch, 1, 1, source_length]`, float32, of a mask, see `logit_bias`.

    Args:
        mask: `[batch, source_length]`, bool, True = token; None, or what this returns,
            is given back.
    """
    if mask is None or len(mask.shape) == 4:
        return mask
    return logit_bias(mask)[:, None, None]


def _with_bias(logits, bias):
    return logits if bias is None else logits + bias


def _num_queries(query, beam_size):
    """New positions of a sentence."""
    return beam_size if len(query.shape) == 2 else ops.shape(query)[1]


def _joined_as(query, context):
    """`[batch, num_heads, queries, dim]` to rows with `query`'s leading axes."""
    width = context.shape[1] * context.shape[3]
    leading = (-1,) if len(query.shape) == 2 else (-1, ops.shape(query)[1])
    return ops.reshape(_swapped(context), (*leading, width))


def _positions_first(x, beam_size):
    """What queries have of new slots, in their order among the slots.

    Of the slots, hypotheses are innermost; of the queries, positions.
    """
    heads, dim = x.shape[1], x.shape[3]
    slots = ops.shape(x)[2]
    x = ops.reshape(x, (-1, heads, beam_size, slots // beam_size, dim))
    x = ops.transpose(x, (0, 1, 3, 2, 4))
    return ops.reshape(x, (-1, heads, slots, dim))


def _swapped(x):
    """`[a, b, c, d]` to `[a, c, b, d]`, without a gradient.

    As bits: TensorFlow transposes few floats by a library whose calls take longer
    than the work, and integers by itself.
    """
    bits = {"float32": "int32", "float16": "int16", "bfloat16": "int16"}
    dtype = keras.backend.standardize_dtype(x.dtype)
    if dtype not in bits:
        return ops.transpose(x, (0, 2, 1, 3))
    return ops.view(ops.transpose(ops.view(x, bits[dtype]), (0, 2, 1, 3)), dtype)
