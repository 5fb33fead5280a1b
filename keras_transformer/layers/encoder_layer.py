"""One layer of the encoder (section 3.1 of the paper, left of Figure 1)."""

import keras

from keras_transformer.layers.transformer_layer import (
    TransformerLayer,
    call_with_scores,
)


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderLayer(TransformerLayer):
    """Self-attention and the feed-forward network, each wrapped in an `AddNorm`.

    Args:
        num_heads: Number of attention heads.
        key_dim: Width of queries and keys per head.
        d_ff: Inner width of the feed-forward network.
        **kwargs: Further arguments of `TransformerLayer`, such as `dropout`.

    Raises:
        ValueError: If a size is below 1, a rate is out of range, or an option is
            unknown.
    """

    def __init__(self, num_heads, key_dim, d_ff, **kwargs):
        super().__init__(num_heads, key_dim, d_ff, **kwargs)
        self.self_attention = self._self_attention()
        self.self_attention_add_norm = self._add_norm("self_attention_add_norm")
        self.feed_forward = self._feed_forward("feed_forward")
        self.feed_forward_add_norm = self._add_norm("feed_forward_add_norm")

    def build(self, inputs_shape):
        self.self_attention.build(inputs_shape, inputs_shape)
        self.self_attention_add_norm.build(inputs_shape, inputs_shape)
        self.feed_forward.build(inputs_shape)
        self.feed_forward_add_norm.build(inputs_shape, inputs_shape)

    def call(
        self,
        inputs,
        attention_mask=None,
        mask=None,
        return_attention_scores=False,
        training=None,
    ):
        """Applies self-attention and the feed-forward network.

        Args:
            inputs: `[batch, source_length, d_model]`.
            attention_mask: `[batch, 1 or source_length, source_length]`, bool,
                True = attend. With `attention_window`, the second axis must be 1.
            mask: Keras mask of `inputs`. Keras passes it only if `attention_mask` is
                `None`. Otherwise, the attention layer gets it from its input and
                combines it with `attention_mask`.
            return_attention_scores: Whether to also return the attention scores.
            training: Whether dropout is applied.

        Returns:
            `[batch, source_length, d_model]`. With `return_attention_scores`,
            `(output, scores)`, where `scores` is float32 `[batch, num_heads,
            source_length, source_length]`.
        """
        x = inputs
        # Pre-norm normalizes in `sublayer_input`, post-norm after the sublayer.
        y = self.self_attention_add_norm.sublayer_input(x)
        y, scores = call_with_scores(
            self.self_attention,
            y,
            y,
            value_mask=mask,
            attention_mask=attention_mask,
            return_attention_scores=return_attention_scores,
            training=training,
        )
        x = self.self_attention_add_norm(x, y, training=training)

        y = self.feed_forward(self.feed_forward_add_norm.sublayer_input(x))
        x = self.feed_forward_add_norm(x, y, training=training)
        return (x, scores) if return_attention_scores else x
