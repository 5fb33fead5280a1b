"""The encoder and its layers (section 3.1 of the paper, left of Figure 1)."""

import keras

from keras_transformer.layers.transformer_layer import (
    Stack,
    TransformerLayer,
    collect_scores,
)


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderLayer(TransformerLayer):
    """Layer of the encoder: self-attention and the feed-forward network.

    Each is wrapped in an `AddNorm`.

    Args:
        num_heads: Number of attention heads.
        key_dim: Width of queries and keys per head.
        d_ff: Inner width of the feed-forward network.
        **kwargs: `value_dim`, `dropout`, `attention_dropout`, `normalization`,
            `activation`, `attention_window`, `score_mode`, `attention_bias`,
            `layer_norm_epsilon`, `positions` and `max_distance` of
            `TransformerLayer`, and arguments of `keras.layers.Layer`.

    Examples:
        >>> layer = kt.layers.EncoderLayer(num_heads=2, key_dim=4, d_ff=16)
        >>> x = keras.ops.ones((1, 3, 8))
        >>> output, scores = layer(x, return_attention_scores=True)
        >>> print(output.shape, scores.shape)
        (1, 3, 8) (1, 2, 3, 3)
    """

    def __init__(self, num_heads, key_dim, d_ff, **kwargs):
        super().__init__(num_heads, key_dim, d_ff, **kwargs)
        self.self_attention = self._self_attention()
        self.self_attention_add_norm = self._add_norm("self_attention_add_norm")
        self.feed_forward = self._feed_forward()
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
            mask: `[batch, source_length]`, bool, True = token. If neither mask is
                given, Keras passes the mask of `inputs`.
            return_attention_scores: Whether to also return the attention scores.
            training: Whether dropout is applied.

        Returns:
            `[batch, source_length, d_model]`. With `return_attention_scores`,
            `(output, scores)`, where `scores` is float32 `[batch, num_heads,
            source_length, source_length]`.
        """
        scores = [] if return_attention_scores else None
        options = {"attention_mask": attention_mask, "value_mask": mask}

        def attend(y):
            attention = self.self_attention
            return collect_scores(attention, scores, y, y, **options, training=training)

        x = self.self_attention_add_norm.apply(inputs, attend, training)
        x = self.feed_forward_add_norm.apply(x, self.feed_forward, training)
        return x if scores is None else (x, *scores)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(Stack):
    """The encoder: a stack of `num_layers` encoder layers.

    With `normalization="pre"`, a layer normalization follows the last layer.

    Args:
        num_layers: Number of layers, N.
        num_heads: Number of attention heads.
        key_dim: Width of queries and keys per head.
        d_ff: Inner width of the feed-forward networks.
        **kwargs: `value_dim`, `dropout`, `attention_dropout`, `normalization`,
            `activation`, `attention_window`, `score_mode`, `attention_bias`,
            `layer_norm_epsilon`, `positions` and `max_distance` of
            `TransformerLayer`, and arguments of `keras.layers.Layer`.

    Examples:
        >>> x = keras.random.normal((2, 5, 16))
        >>> encoder = kt.layers.Encoder(num_layers=2, num_heads=4, key_dim=4, d_ff=32)
        >>> print(encoder(x).shape)
        (2, 5, 16)
    """

    layer_class = EncoderLayer

    def build(self, inputs_shape):
        super().build(inputs_shape)

    def call(
        self,
        inputs,
        source_mask=None,
        mask=None,
        return_attention_scores=False,
        training=None,
    ):
        """Encodes a batch of sources.

        Args:
            inputs: `[batch, source_length, d_model]`.
            source_mask: `[batch, source_length]`, bool, True = token.
            mask: Mask of `inputs`, passed by Keras and used if there is no
                `source_mask`.
            return_attention_scores: Whether to also return the attention scores.
            training: Whether dropout is applied.

        Returns:
            `[batch, source_length, d_model]`. With `return_attention_scores`,
            `(output, scores)`, where `scores` is a list with one tensor per layer,
            float32 `[batch, num_heads, source_length, source_length]`.
        """
        scores = [] if return_attention_scores else None
        mask = mask if source_mask is None else source_mask
        x = self.apply_layers(inputs, scores, mask=mask, training=training)
        return x if scores is None else (x, scores)
