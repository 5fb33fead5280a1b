"""Self-attention restricted to a neighborhood (section 4, last row of Table 1)."""

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.masks import combine_masks
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.multi_head_attention import attention
from keras_transformer.numerics.softmax import masked_softmax

_MAX_STATIC_BLOCK = 512


@keras.saving.register_keras_serializable(package="keras_transformer")
class RestrictedSelfAttention(MultiHeadAttention):
    """Multi-head self-attention in which each position attends to `window` positions.

    The neighborhood is centered on the position: `(window - 1) // 2` positions before
    it, itself, and `window // 2` after it. With a causal mask it is the position and
    the `window - 1` before it. The sequence is split into blocks that attend to
    themselves and their neighbors, so that time and memory grow with length times
    window.

    `call` takes one sequence as `query`, `value`, and `key`, and an `attention_mask`
    of shape `[batch, 1, length]`. It raises a `ValueError` for another mask shape or
    different static lengths. `return_attention_scores` computes the full matrix.

    Args:
        num_heads: Number of heads, h.
        key_dim: Width of queries and keys per head, d_k.
        window: Number of positions, r.
        **kwargs: See `MultiHeadAttention`.

    Raises:
        ValueError: If `window` is below 1.
    """

    def __init__(self, num_heads, key_dim, window, **kwargs):
        super().__init__(num_heads, key_dim, **kwargs)
        if window < 1:
            raise ValueError(f"`window` must be at least 1. Received: {window}.")
        self.window = window

    def attend(self, query, key, value, mask, causal, training, return_scores):
        """Like `MultiHeadAttention.attend`, over each position's neighborhood."""
        lengths = query.shape[2], key.shape[2]
        if None not in lengths and lengths[0] != lengths[1]:
            raise ValueError(
                "`query` and `value` must be the same sequence. "
                f"Received: lengths {lengths[0]} and {lengths[1]}."
            )
        if mask is not None and mask.shape[1] != 1:
            raise ValueError(
                "`attention_mask` must have the shape [batch, 1, length]. "
                f"Received: shape {tuple(mask.shape)}."
            )
        before, after = (self.window - 1) // 2, self.window // 2
        if causal:
            before, after = self.window - 1, 0
        size = max(before, after, 1)
        # Number of neighboring blocks on each side.
        sides = 1, 0 if causal else 1
        length = ops.shape(query)[2]
        if size > _MAX_STATIC_BLOCK:
            # A window beyond the sequence must not need more memory than the sequence.
            smaller = min if isinstance(length, int) else ops.minimum
            size = smaller(size, length)
        key_mask = ops.ones((1, length), dtype="bool") if mask is None else mask[:, 0]
        key_mask = ops.cast(key_mask, "int32")[:, None, :, None]
        key_mask = _join_neighbors(_split_blocks(key_mask, size), sides)
        # [batch or 1, 1, blocks, 1, keys] and [size, keys]
        key_mask = ops.cast(ops.swapaxes(key_mask, -1, -2), "bool")
        block_mask = ops.logical_and(key_mask, _band(size, sides, before, after))
        keys = _join_neighbors(_split_blocks(key, size), sides)
        values = _join_neighbors(_split_blocks(value, size), sides)
        logits = self.attention_logits(_split_blocks(query, size), keys)
        context, _ = attention(logits, values, block_mask, self.dropout_layer, training)
        # [batch, num_heads, blocks, size, value_dim] to [batch, num_heads, length, ...]
        batch, dim = ops.shape(context)[0], context.shape[-1]
        context = ops.reshape(context, (batch, self.num_heads, -1, dim))[:, :, :length]
        if not return_scores:
            return context, None
        mask = combine_masks(mask, _neighborhood(length, before, after))
        scores = masked_softmax(self.attention_logits(query, key), mask[:, None])
        return context, scores

    def get_config(self):
        return {**super().get_config(), "window": self.window}


def _neighborhood(length, before, after):
    """`[1, length, length]`, bool: the keys that each query may attend to."""
    positions = ops.arange(length, dtype="int32")
    distance = positions[None, :] - positions[:, None]
    return ops.logical_and(distance >= -before, distance <= after)[None]


def _split_blocks(x, size):
    """`[batch, heads, length, dim]` to `[batch, heads, blocks, size, dim]`, padded."""
    batch, length = ops.shape(x)[0], ops.shape(x)[2]
    heads, dim = x.shape[1], x.shape[3]
    padding = ops.zeros((batch, heads, -length % size, dim), dtype=x.dtype)
    padded = ops.concatenate([x, padding], axis=2)
    return ops.reshape(padded, (batch, heads, -1, size, dim))


def _join_neighbors(blocks, sides):
    """Joins each block with `sides[0]` blocks before and `sides[1]` after it."""
    nothing = ops.zeros_like(blocks[:, :, :1])
    parts = [blocks]
    if sides[0]:
        parts.insert(0, ops.concatenate([nothing, blocks[:, :, :-1]], axis=2))
    if sides[1]:
        parts.append(ops.concatenate([blocks[:, :, 1:], nothing], axis=2))
    return ops.concatenate(parts, axis=3)


def _band(size, sides, before, after):
    """Bool: the keys of a block and its neighbors that each query attends to."""
    arange = np.arange if isinstance(size, int) else ops.arange
    queries = arange(size)[:, None]
    keys = arange(size * (1 + sum(sides)))[None, :] - sides[0] * size
    return (keys >= queries - before) & (keys <= queries + after)
