"""One layer of the encoder (section 3.1, Figure 1 left)."""

import keras

from keras_transformer.layers.transformer_layer import Block


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderLayer(Block):
    """Self-attention, then the feed-forward network, each in an `AddNorm`.

    Args:
        num_heads: Number of attention heads.
        key_dim: Width of queries and keys per head.
        d_ff: Inner width of the feed-forward network.
        **kwargs: `value_dim`, `dropout`, `attention_dropout`, `normalization` and
            `activation`, see `Block`, and those of every Keras layer.
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

    def call(self, inputs, attention_mask=None, mask=None, training=None):
        """Encodes one step further.

        Args:
            inputs: `[batch, source_length, d_model]`.
            attention_mask: `[batch, 1 or source_length, source_length]`, bool,
                True = attend.
            mask: `[batch, source_length]`, bool; Keras fills it in.
            training: Whether dropout is applied.

        Returns:
            `[batch, source_length, d_model]`.
        """
        normalized = self.self_attention_add_norm.sublayer_input(inputs)
        attended = self.self_attention(
            normalized,
            normalized,
            value_mask=mask,
            attention_mask=attention_mask,
            training=training,
        )
        x = self.self_attention_add_norm(inputs, attended, training=training)
        transformed = self.feed_forward(self.feed_forward_add_norm.sublayer_input(x))
        return self.feed_forward_add_norm(x, transformed, training=training)

    def compute_output_shape(self, inputs_shape):
        return inputs_shape
