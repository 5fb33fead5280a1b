"""Multi-head attention and its score functions (section 3.2 of the paper, Figure 2).

As in Keras, a score function computes logits, and attention scores are their softmax.
"""

import math

import keras
import numpy as np
from keras import ops

from keras_transformer.arguments import POSITIONS, SCORE_MODES, require_choice
from keras_transformer.layers.base import Dense, child_layer
from keras_transformer.layers.masks import causal_mask, combine_masks
from keras_transformer.layers.positional_encoding import (
    multiply_each_query,
    relative_vectors,
    rotate,
)
from keras_transformer.numerics.dropout import Dropout
from keras_transformer.numerics.indexing import shape
from keras_transformer.numerics.softmax import masked_softmax


def attention(logits, value, mask, dropout, training, relative_values=None):
    """Computes `softmax(logits) V` (equation 1).

    In the shapes, `...` is the block axis of `RestrictedSelfAttention`. Other layers
    have no such axis.

    Args:
        logits: `[batch, num_heads, ..., target_length, source_length]`.
        value: `[batch, num_heads, ..., source_length, value_dim]`.
        mask: Bool, `True` for each key to attend to, with axes that broadcast to those
            of the logits, or `None`.
        dropout: Dropout layer for the scores.
        training: Whether to apply the dropout.
        relative_values: Vectors `[target_length, source_length, value_dim]` that are
            added to the values, or `None`.

    Returns:
        The context `[batch, num_heads, ..., target_length, value_dim]`, and the scores
        before dropout, float32.
    """
    scores = masked_softmax(logits, mask)
    weights = dropout(ops.cast(scores, value.dtype), training=training)
    context = ops.matmul(weights, value)
    if relative_values is not None:
        context = context + multiply_each_query(
            weights, ops.cast(relative_values, value.dtype)
        )
    return context, scores


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(keras.layers.Layer):
    """Multi-head attention (section 3.2.2).

    Computes `Concat(head_1, ..., head_h) W^O` with `head_i = Attention(Q W_i^Q,
    K W_i^K, V W_i^V)`. The widths of keys and values are independent of each other and
    of `d_model`. By default, the projections have no biases, as the paper defines them
    as matrices.

    Args:
        num_heads: Number of heads, h.
        key_dim: Width of queries and keys per head, d_k.
        value_dim: Width of values per head, d_v. If `None`, `key_dim` is used.
        output_dim: Width of the output. If `None`, the query's width is used.
        dropout: Dropout rate of the attention scores, in [0, 1). 0 in the paper.
        use_bias: Whether the four projections have biases.
        score_mode: Score function (section 3.2.1). `"dot"` omits the division by
            sqrt(d_k). `"additive"` is the sum of `w tanh(q + k)` over `key_dim`, with
            weights w `[num_heads, key_dim]` (Bahdanau et al., 2015). Its memory grows
            with target_length * source_length * key_dim.
        positions: For self-attention, `"relative"` adds a learned vector of the
            distance to each key and value, the same for all heads (Shaw et al., 2018,
            equations 3 and 4), and `"rotary"` rotates queries and keys (Su et al.,
            2021). `"sinusoidal"` and `"learned"` change nothing here.
        max_distance: Clipping distance k: positions at least k apart share one vector.

    Raises:
        ValueError: If a size is below 1, `dropout` is outside [0, 1), or `score_mode`
            or `positions` is unknown. If positions are relative and `score_mode` is
            `"additive"`, or if they are rotary and `key_dim` is odd.

    Examples:
        >>> x = keras.random.normal((2, 3, 16))
        >>> attention = kt.layers.MultiHeadAttention(num_heads=4, key_dim=4)
        >>> output, scores = attention(x, x, return_attention_scores=True)
        >>> print(output.shape, scores.shape)
        (2, 3, 16) (2, 4, 3, 3)
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        value_dim=None,
        output_dim=None,
        dropout=0.0,
        use_bias=False,
        score_mode="scaled_dot",
        positions="sinusoidal",
        max_distance=16,
        **kwargs,
    ):
        super().__init__(**kwargs)
        require_choice("score_mode", score_mode, SCORE_MODES)
        require_choice("positions", positions, POSITIONS)
        sizes = {
            "num_heads": num_heads,
            "key_dim": key_dim,
            "value_dim": value_dim,
            "output_dim": output_dim,
            "max_distance": max_distance,
        }
        for name, size in sizes.items():
            if size is not None and size < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {size}.")
        if not 0 <= dropout < 1:
            raise ValueError(f"`dropout` must be in [0, 1). Received: {dropout}.")
        if positions == "relative" and score_mode == "additive":
            raise ValueError(
                "Relative positions need `score_mode` scaled_dot or dot. "
                "Received: 'additive'."
            )
        if positions == "rotary" and key_dim % 2:
            raise ValueError(
                f"Rotary positions need an even `key_dim`. Received: {key_dim}."
            )
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.output_dim = output_dim
        self.dropout = dropout
        self.use_bias = use_bias
        self.score_mode = score_mode
        self.positions = positions
        self.max_distance = max_distance
        self.supports_masking = True
        self.query_dense = self._dense(num_heads * key_dim, "query")
        self.key_dense = self._dense(num_heads * key_dim, "key")
        self.value_dense = self._dense(num_heads * (value_dim or key_dim), "value")
        self.dropout_layer = child_layer(self, Dropout, "attention_dropout", dropout)

    def _dense(self, width, name):
        return child_layer(self, Dense, name, width, use_bias=self.use_bias)

    def build(self, query_shape, value_shape, key_shape=None):
        self.query_dense.build(query_shape)
        self.key_dense.build(key_shape or value_shape)
        self.value_dense.build(value_shape)
        self.output_dense = self._dense(self.output_dim or query_shape[-1], "output")
        self.output_dense.build((*query_shape[:-1], self.value_dense.units))
        if self.score_mode == "additive":
            self.score_weights = self.add_weight(
                name="score_weights",
                shape=(self.num_heads, self.key_dim),
                initializer="glorot_uniform",
            )
        if self.positions == "relative":
            self.relative_keys, self.relative_values = (
                self.add_weight(
                    name=name,
                    shape=(2 * self.max_distance + 1, dim),
                    initializer="glorot_uniform",
                )
                for name, dim in (
                    ("relative_keys", self.key_dim),
                    ("relative_values", self.value_dim or self.key_dim),
                )
            )

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
    ):
        """Computes the attention of `query` over `value`.

        Args:
            query: `[batch, target_length, width]`.
            value: `[batch, source_length, width]`.
            key: `[batch, source_length, width]`. If `None`, `value` is used.
            query_mask: Ignored, because only keys are masked.
            value_mask: Keras mask of `value`, `[batch, source_length]`, bool. Passed by
                Keras and combined with the other masks.
            key_mask: Like `value_mask`, for `key`.
            attention_mask: `[batch, 1 or target_length, source_length]`, bool,
                True = attend.
            return_attention_scores: Whether to also return the attention scores.
            training: Whether dropout is applied.
            use_causal_mask: Whether position i attends only to keys up to i.

        Returns:
            The output `[batch, target_length, output_dim]`. With
            `return_attention_scores`, the pair `(output, scores)`. The scores are
            float32, before dropout, with shape `[batch, num_heads, target_length,
            source_length]`.

        Raises:
            ValueError: If an input or `attention_mask` does not have three axes.
        """
        lengths = "batch, 1 or target_length, source_length"
        _check_axes("attention_mask", attention_mask, lengths)
        for name, array in (("query", query), ("value", value), ("key", key)):
            _check_axes(name, array, "batch, length, width")
        mask = combine_masks(
            attention_mask,
            None if value_mask is None else value_mask[:, None, :],
            None if key_mask is None else key_mask[:, None, :],
        )
        key, value = self.project_key_value(value, key)
        query = self.split_heads(self.query_dense(query))
        if self.positions == "rotary":
            query, key = (
                rotate(each, ops.arange(shape(each)[2], dtype="int32"))
                for each in (query, key)
            )
        context, scores = self.attend(
            query, key, value, mask, use_causal_mask, training, return_attention_scores
        )
        output = self.output_dense(self.join_heads(context))
        return (output, scores) if return_attention_scores else output

    def attend(self, query, key, value, mask, causal, training, return_scores):
        """Computes the attention of all heads.

        Queries, keys and values are `[batch, num_heads, length, dim]`, and the mask is
        `[batch, 1 or target_length, source_length]` or `None`. Returns the context
        `[batch, num_heads, target_length, value_dim]` and the scores. Without
        `return_scores`, a subclass may return `None` for the scores.
        """
        if causal:
            lengths = shape(query)[2], shape(key)[2]
            mask = combine_masks(mask, causal_mask(*lengths))
        mask = None if mask is None else mask[:, None]
        logits, relative_values = self.position_logits(query, key)
        options = self.dropout_layer, training, relative_values
        return attention(logits, value, mask, *options)

    def position_logits(self, query, key, first_key=0):
        """Returns the logits, with relative positions, and the vectors of values.

        The former are like those of `attention_logits`. The latter are `[target_length,
        source_length, value_dim]`, or `None` if positions are not relative. `first_key`
        is the position of the first key minus that of the first query.
        """
        logits = self.attention_logits(query, key)
        if self.positions != "relative":
            return logits, None
        queries, keys = (
            ops.arange(shape(each)[-2], dtype="int32") for each in (query, key)
        )
        distances = keys[None, :] + first_key - queries[:, None]
        keys, values = self.relative_key_value(distances, logits.dtype)
        # The paper divides the sum of both products by sqrt(d_k).
        query = self._scale(ops.cast(query, logits.dtype))
        keys = ops.swapaxes(keys, -1, -2)
        return logits + multiply_each_query(query, keys), values

    def relative_key_value(self, distances, dtype):
        """Returns the vectors that distances `[...]` add to keys and values."""
        # Outside `call`, Keras does not cast weights to the compute dtype.
        return tuple(
            relative_vectors(ops.cast(table, dtype), distances)
            for table in (self.relative_keys, self.relative_values)
        )

    def project_key_value(self, value, key=None):
        """Projects `[batch, length, width]` to keys and values per head.

        Their shapes are `[batch, num_heads, length, key_dim]` and `[batch, num_heads,
        length, value_dim]`.
        """
        key = self.split_heads(self.key_dense(value if key is None else key))
        return key, self.split_heads(self.value_dense(value))

    def attention_logits(self, query, key):
        """Computes the attention logits with the score function `score_mode`.

        Queries and keys are `[batch, num_heads, ..., length, key_dim]`, and the logits
        `[batch, num_heads, ..., target_length, source_length]`, in float32 if the
        compute dtype is float16.
        """
        if self.compute_dtype == "float16":
            # Sums of large products can exceed float16's maximum, 65504.
            query, key = ops.cast(query, "float32"), ops.cast(key, "float32")
        if self.score_mode == "additive":
            return self._additive_logits(query, key)
        return ops.matmul(self._scale(query), ops.swapaxes(key, -1, -2))

    def _scale(self, query):
        if self.score_mode != "scaled_dot":
            return query
        return query * ops.cast(1.0 / math.sqrt(self.key_dim), query.dtype)

    def _additive_logits(self, query, key):
        # [batch, num_heads, ..., target_length, source_length, key_dim]
        sums = ops.tanh(query[..., :, None, :] + key[..., None, :, :])
        # Outside `call`, Keras does not cast weights to the compute dtype.
        weights = ops.cast(self.score_weights, sums.dtype)
        # [num_heads, 1, ..., 1, key_dim, 1], to sum over the last axis of `sums`
        inner = (1,) * (len(sums.shape) - 4)
        weights = ops.reshape(weights, (self.num_heads, *inner, self.key_dim, 1))
        return ops.matmul(sums, weights)[..., 0]

    def split_heads(self, x):
        """Splits `[batch, length, heads * dim]` into `[batch, heads, length, dim]`."""
        dim = x.shape[-1] // self.num_heads
        batch, length, _ = shape(x)
        x = ops.reshape(x, (batch, length, self.num_heads, dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def join_heads(self, x):
        """Joins `[batch, heads, length, dim]` into `[batch, length, heads * dim]`."""
        x = ops.transpose(x, (0, 2, 1, 3))
        batch, length, *_ = shape(x)
        return ops.reshape(x, (batch, length, self.num_heads * x.shape[-1]))

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None):
        return (*query_shape[:-1], self.output_dim or query_shape[-1])

    def compute_output_spec(self, *args, **kwargs):
        # Traces `call`, because the attention scores have a shape of their own.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "output_dim": self.output_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "score_mode": self.score_mode,
            "positions": self.positions,
            "max_distance": self.max_distance,
        }


def _check_axes(name, array, axes):
    """Checks that an array has three axes. The first of two would apply to heads."""
    shape = array.shape if hasattr(array, "shape") else np.shape(array)
    if array is not None and len(shape) != 3:
        raise ValueError(
            f"`{name}` must have the shape [{axes}]. Received: shape {tuple(shape)}."
        )
