"""Self-attention over a neighbourhood (section 4, "restricted" in Table 1)."""

import keras
import numpy as np
from keras import ops

from keras_transformer.layers import decoding_cache
from keras_transformer.layers.masks import combine_masks
from keras_transformer.layers.multi_head_attention import MultiHeadAttention


@keras.saving.register_keras_serializable(package="keras_transformer")
class RestrictedSelfAttention(MultiHeadAttention):
    """Multi-head self-attention in which each position sees `window` positions.

    The neighbourhood is centred on the position: `(window - 1) // 2` positions before
    it, itself, and `window // 2` after it. With a causal mask it is the position and
    the `window - 1` before it. The sequence is cut into blocks that see themselves and
    their neighbours, so that time and memory grow with length times window.

    Args:
        num_heads: Number of heads, h.
        key_dim: Width of queries and keys per head, d_k.
        window: Number of positions, r.
        **kwargs: As `MultiHeadAttention`.

    Raises:
        ValueError: `window` below 1.
    """

    def __init__(self, num_heads, key_dim, window, **kwargs):
        super().__init__(num_heads, key_dim, **kwargs)
        if window < 1:
            raise ValueError(f"`window` must be at least 1. Received: {window}.")
        self.window = window

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        use_causal_mask=False,
        training=None,
    ):
        """Attention of each position over its neighbourhood.

        Args:
            query: `[batch, length, width]`.
            value: The same sequence.
            key: The same sequence, or None.
            query_mask: Ignored: only keys are masked.
            value_mask: `[batch, length]`, bool; Keras fills it in.
            key_mask: `[batch, length]`, bool; Keras fills it in.
            attention_mask: `[batch, 1, length]`, bool, True = attend.
            use_causal_mask: Whether position i sees positions up to i only.
            training: Whether dropout is applied.

        Returns:
            `[batch, length, output_dim]`.

        Raises:
            ValueError: an `attention_mask` that differs by query, or a value of another
                length than the query.
        """
        lengths = query.shape[1], value.shape[1]
        if None not in lengths and lengths[0] != lengths[1]:
            raise ValueError(
                "`query` and `value` must be the same sequence. "
                f"Received: lengths {lengths[0]} and {lengths[1]}."
            )
        if attention_mask is not None and attention_mask.shape[1] != 1:
            raise ValueError(
                "`attention_mask` must have the shape [batch, 1, length]. "
                f"Received: shape {tuple(attention_mask.shape)}."
            )
        mask = combine_masks(
            None if attention_mask is None else attention_mask[:, 0],
            value_mask,
            key_mask,
        )
        before, after = self._reach(use_causal_mask)
        size = max(before, after, 1)
        # One block of neighbours on each side that is seen.
        sides = 1, 0 if use_causal_mask else 1
        length = ops.shape(query)[1]
        key, value = self.project_key_value(value, key)
        query = _blocks(self._split_heads(self.query_dense(query)), size)
        key = _with_neighbours(_blocks(key, size), sides)
        value = _with_neighbours(_blocks(value, size), sides)
        if mask is None:
            mask = ops.ones((1, length), dtype="bool")
        mask = ops.cast(mask, "int32")[:, None, :, None]
        mask = _with_neighbours(_blocks(mask, size), sides)
        # [batch or 1, 1, blocks, 1, keys] and [size, keys]
        mask = ops.cast(ops.swapaxes(mask, -1, -2), "bool")
        band = _band(size, sides, before, after)
        mask = ops.logical_and(mask, band)
        scores = self.scores_of_heads(query, key, mask, training)
        scores = ops.cast(scores, self.compute_dtype)
        context = ops.matmul(self.dropout_layer(scores, training=training), value)
        # [batch, num_heads, blocks, size, value_dim] to one row a position
        context = ops.transpose(context, (0, 2, 3, 1, 4))
        batch, width = ops.shape(context)[0], context.shape[-1] * self.num_heads
        context = ops.reshape(context, (batch, -1, width))[:, :length]
        return self.output_dense(context)

    def call_with_scores(self, query, key_value, attention_mask=None, training=None):
        """As `MultiHeadAttention.call_with_scores`, of the neighbourhood alone."""
        near = self._neighbourhood(ops.shape(query)[1], causal=False)
        mask = combine_masks(attention_mask, near)
        return super().call_with_scores(query, key_value, mask, training)

    def init_cache(self, batch_size, max_length=None, beam_size=1):
        """As `MultiHeadAttention.init_cache`, with room for `window` positions.

        A cache of fixed size then takes one position at a time.
        """
        if isinstance(max_length, int):
            max_length = min(max_length, self.window)
        elif max_length is not None:
            max_length = ops.minimum(max_length, self.window)
        return super().init_cache(batch_size, max_length, beam_size)

    def _append(self, new, cache, start_index, beam_size):
        if decoding_cache.is_buffer(cache) and new[0].shape[2] != beam_size:
            raise ValueError(
                "A cache of fixed size takes one position at a time. "
                f"Received: {new[0].shape[2]} queries of {beam_size} hypotheses."
            )
        return super()._append(new, cache, start_index, beam_size)

    def _position_in_buffer(self, cache, beam_size, position):
        if not decoding_cache.is_buffer(cache):
            return position
        # The oldest position makes room; their order does not matter to attention.
        return position % (decoding_cache.num_slots(cache) // beam_size)

    def _trimmed(self, cache, beam_size):
        if decoding_cache.is_buffer(cache):
            return cache
        return decoding_cache.newest(cache, self.window * beam_size)

    def _neighbourhood(self, length, causal):
        before, after = self._reach(causal)
        positions = ops.arange(length, dtype="int32")
        distance = positions[None, :] - positions[:, None]
        return ops.logical_and(distance >= -before, distance <= after)[None]

    def _reach(self, causal):
        """How many positions before and after its own a position sees."""
        if causal:
            return self.window - 1, 0
        return (self.window - 1) // 2, self.window // 2

    def get_config(self):
        return {**super().get_config(), "window": self.window}


def _blocks(x, size):
    """`[batch, heads, length, dim]` to `[batch, heads, blocks, size, dim]`, padded."""
    batch, length = ops.shape(x)[0], ops.shape(x)[2]
    heads, dim = x.shape[1], x.shape[3]
    padding = ops.zeros((batch, heads, -length % size, dim), dtype=x.dtype)
    padded = ops.concatenate([x, padding], axis=2)
    return ops.reshape(padded, (batch, heads, -1, size, dim))


def _with_neighbours(blocks, sides):
    """Each block between `sides[0]` blocks before and `sides[1]` after it, joined."""
    nothing = ops.zeros_like(blocks[:, :, :1])
    parts = [blocks]
    if sides[0]:
        parts.insert(0, ops.concatenate([nothing, blocks[:, :, :-1]], axis=2))
    if sides[1]:
        parts.append(ops.concatenate([blocks[:, :, 1:], nothing], axis=2))
    return ops.concatenate(parts, axis=3)


def _band(size, sides, before, after):
    """Which keys of block and neighbours each query of the block sees, bool."""
    queries = np.arange(size)[:, None]
    keys = np.arange(size * (1 + sum(sides)))[None, :] - sides[0] * size
    return (keys >= queries - before) & (keys <= queries + after)
