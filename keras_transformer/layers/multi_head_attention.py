"""Scaled dot-product attention and its heads (section 3.2, Figure 2)."""

import keras
from keras import ops

from keras_transformer.layers.cached_attention import CachedAttention
from keras_transformer.layers.masks import causal_mask
from keras_transformer.layers.masks import combine_masks
from keras_transformer.numerics.dropout import Dropout
from keras_transformer.numerics.matrices import Dense
from keras_transformer.numerics.softmax import masked_softmax
from keras_transformer.numerics.softmax import scaled_dot_products

SCORES = ("scaled_dot", "dot", "additive")


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(CachedAttention, keras.layers.Layer):
    """Multi-head attention (section 3.2.2).

    `Concat(head_1, ..., head_h) W^O` with `head_i = Attention(Q W_i^Q, K W_i^K,
    V W_i^V)`. The widths of keys and values are independent of each other and of
    the model's width, which is taken from the query. There are no projection
    biases unless asked for: the paper's parameter counts have none.

    Decoding step by step: `call_with_context` for attention over an encoder's output,
    whose keys and values are projected once; `call_with_cache` for self-attention, of
    one row a sentence or of a beam's.

    Args:
        num_heads: Number of heads, h.
        key_dim: Width of queries and keys per head, d_k.
        value_dim: Width of values per head, d_v. None: `key_dim`.
        output_dim: Width of the output. None: that of the query.
        dropout: Rate on the attention scores, in [0, 1). The paper has none.
        use_bias: Whether the four projections have biases.
        score: How a query and a key give a logit (section 3.2.1): `"scaled_dot"` (the
            paper), `"dot"` without the division by sqrt(d_k), or `"additive"`, the
            sum of `w tanh(q + k)` with weights w `[num_heads, key_dim]` (Bahdanau et
            al., 2015), whose memory grows with key_dim as well.

    Raises:
        ValueError: a size below 1, `dropout` outside [0, 1), or an unknown `score`.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        value_dim=None,
        output_dim=None,
        dropout=0.0,
        use_bias=False,
        score="scaled_dot",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if score not in SCORES:
            raise ValueError(
                f"`score` must be one of {', '.join(SCORES)}. Received: {score!r}."
            )
        for name, size in (
            ("num_heads", num_heads),
            ("key_dim", key_dim),
            ("value_dim", value_dim),
            ("output_dim", output_dim),
        ):
            if size is not None and size < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {size}.")
        if not 0 <= dropout < 1:
            raise ValueError(f"`dropout` must lie in [0, 1). Received: {dropout}.")
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.output_dim = output_dim
        self.dropout = dropout
        self.use_bias = use_bias
        self.score = score
        self.supports_masking = True
        key_width = num_heads * key_dim
        value_width = num_heads * (value_dim or key_dim)
        self.query_dense = self._dense(key_width, "query")
        self.key_dense = self._dense(key_width, "key")
        self.value_dense = self._dense(value_width, "value")
        self.dropout_layer = Dropout(
            dropout, dtype=self.dtype_policy, name="attention_dropout"
        )

    def _dense(self, width, name):
        return Dense(width, use_bias=self.use_bias, dtype=self.dtype_policy, name=name)

    def build(self, query_shape, value_shape, key_shape=None):
        self.query_dense.build(query_shape)
        self.key_dense.build(key_shape or value_shape)
        self.value_dense.build(value_shape)
        self.output_dense = self._dense(self.output_dim or query_shape[-1], "output")
        width = self.num_heads * (self.value_dim or self.key_dim)
        self.output_dense.build((*query_shape[:-1], width))
        if self.score == "additive":
            self.score_weights = self.add_weight(
                name="score_weights",
                shape=(self.num_heads, self.key_dim),
                initializer="glorot_uniform",
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
        use_causal_mask=False,
        training=None,
    ):
        """Attention of `query` over `value`.

        Args:
            query: `[batch, target_length, width]`.
            value: `[batch, source_length, width]`.
            key: `[batch, source_length, width]`. None: `value`.
            query_mask: Ignored: only keys are masked.
            value_mask: `[batch, source_length]`, bool; Keras fills it in.
            key_mask: `[batch, source_length]`, bool; Keras fills it in.
            attention_mask: `[batch, 1 or target_length, source_length]`, bool,
                True = attend.
            use_causal_mask: Whether position i sees keys up to i only.
            training: Whether dropout is applied.

        Returns:
            `[batch, target_length, output_dim]`.
        """
        mask = combine_masks(
            attention_mask,
            None if value_mask is None else value_mask[:, None, :],
            None if key_mask is None else key_mask[:, None, :],
        )
        if use_causal_mask:
            lengths = ops.shape(query)[1], ops.shape(value)[1]
            mask = combine_masks(mask, causal_mask(*lengths))
        key_value = self.project_key_value(value, key)
        return self.call_with_key_value(query, key_value, mask, training)

    def project_key_value(self, value, key=None):
        """Keys and values per head.

        Args:
            value: `[batch, source_length, width]`.
            key: `[batch, source_length, width]`. None: `value`.

        Returns:
            Keys `[batch, num_heads, source_length, key_dim]` and values `[batch,
            num_heads, source_length, value_dim]`.
        """
        key = value if key is None else key
        return (
            self._split_heads(self.key_dense(key)),
            self._split_heads(self.value_dense(value)),
        )

    def scores(self, query, key, attention_mask=None, training=False):
        """Softmaxed attention of `query` over projected keys.

        Args:
            query: `[batch, target_length, width]`.
            key: `[batch, num_heads, source_length, key_dim]`.
            attention_mask: `[batch, 1 or target_length, source_length]`, bool.
            training: As of `attention_scores.masked_softmax`.

        Returns:
            `[batch, num_heads, target_length, source_length]`, float32.
        """
        if attention_mask is not None:
            attention_mask = attention_mask[:, None]
        query = self._split_heads(self.query_dense(query))
        return self.scores_of_heads(query, key, attention_mask, training)

    def self_scores(self, x, mask=None, use_causal_mask=False):
        """Where each position looks when the layer attends over `x` itself.

        Args:
            x: `[batch, length, width]`.
            mask: `[batch, length]`, bool, True = token.
            use_causal_mask: Whether position i sees positions up to i only.

        Returns:
            `[batch, num_heads, length, length]`, float32.
        """
        length = ops.shape(x)[1]
        mask = combine_masks(
            None if mask is None else mask[:, None, :],
            causal_mask(length, length) if use_causal_mask else None,
            self._neighbourhood(length, use_causal_mask),
        )
        return self.scores(x, self.project_key_value(x)[0], mask)

    def _neighbourhood(self, length, causal):
        """`[1, length, length]`, bool, what positions can see; None: everything."""

    def scores_of_heads(self, query, key, attention_mask=None, training=False):
        """Softmaxed attention by the layer's own `score`, in float32.

        Args:
            query: `[batch, num_heads, ..., target_length, key_dim]`.
            key: `[batch, num_heads, ..., source_length, key_dim]`.
            attention_mask: `[batch, 1 or num_heads, ..., 1 or target_length,
                source_length]`, bool, True = attend, or None.
            training: As of `attention_scores.masked_softmax`.

        Returns:
            `[batch, num_heads, ..., target_length, source_length]`, float32.
        """
        logits = self.logits_of_heads(query, key)
        return masked_softmax(logits, attention_mask, training)

    def logits_of_heads(self, query, key):
        """What the softmax of `scores_of_heads` is taken of."""
        if self.score == "scaled_dot":
            return scaled_dot_products(query, key)
        if self.score == "dot":
            return ops.matmul(query, ops.swapaxes(key, -1, -2))
        sums = ops.tanh(query[..., :, None, :] + key[..., None, :, :])
        weights = ops.cast(self.score_weights, sums.dtype)
        # [num_heads, 1, ..., key_dim, 1] beside [batch, num_heads, ..., key_dim]
        inner = (1,) * (len(sums.shape) - 4)
        weights = ops.reshape(weights, (self.num_heads, *inner, self.key_dim, 1))
        return ops.matmul(sums, weights)[..., 0]

    def call_with_key_value(self, query, key_value, attention_mask=None, training=None):
        """As `call`, with keys and values from `project_key_value`."""
        output, _ = self.call_with_scores(query, key_value, attention_mask, training)
        return output

    def call_with_scores(self, query, key_value, attention_mask=None, training=None):
        """As `call_with_key_value`, with the scores that made the output.

        Returns:
            `[batch, target_length, output_dim]` and, before dropout, `[batch,
            num_heads, target_length, source_length]`, float32.
        """
        key, value = key_value
        scores = self.scores(query, key, attention_mask, training)
        dropped = self.dropout_layer(
            ops.cast(scores, self.compute_dtype), training=training
        )
        context = ops.transpose(ops.matmul(dropped, value), (0, 2, 1, 3))
        return self.output_dense(self._join_heads(context)), scores

    def _split_heads(self, x):
        # [batch, length, num_heads * dim] to [batch, num_heads, length, dim]
        dim = x.shape[-1] // self.num_heads
        x = ops.reshape(x, (-1, ops.shape(x)[1], self.num_heads, dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def _join_heads(self, x):
        # [batch, length, num_heads, dim] to one row a position
        return ops.reshape(x, (-1, ops.shape(x)[1], self.num_heads * x.shape[-1]))

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        return (*query_shape[:-1], self.output_dim or query_shape[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "output_dim": self.output_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "score": self.score,
        }
