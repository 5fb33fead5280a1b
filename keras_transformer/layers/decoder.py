"""The decoder and its layers (section 3.1 of the paper, right of Figure 1)."""

import keras

from keras_transformer.layers.transformer_layer import (
    Stack,
    TransformerLayer,
    collect_scores,
)


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderLayer(TransformerLayer):
    """Layer of the decoder: self-attention, cross-attention, feed-forward network.

    Self-attention is causal. Each sublayer is wrapped in an `AddNorm`. `transform`
    applies them, in searches to one position at a time.

    Args:
        num_heads: Number of attention heads.
        key_dim: Width of queries and keys per head.
        d_ff: Inner width of the feed-forward network.
        **kwargs: See `TransformerLayer`. They apply to both attentions, except
            `attention_window`, which restricts self-attention only.

    Examples:
        >>> layer = kt.layers.DecoderLayer(num_heads=2, key_dim=4, d_ff=16)
        >>> x, encoder_output = keras.ops.ones((1, 2, 8)), keras.ops.ones((1, 3, 8))
        >>> print(layer(x, encoder_output).shape)
        (1, 2, 8)
    """

    def __init__(self, num_heads, key_dim, d_ff, **kwargs):
        super().__init__(num_heads, key_dim, d_ff, **kwargs)
        self.self_attention = self._self_attention()
        self.self_attention_add_norm = self._add_norm("self_attention_add_norm")
        self.cross_attention = self._attention("cross_attention")
        self.cross_attention_add_norm = self._add_norm("cross_attention_add_norm")
        self.feed_forward = self._feed_forward()
        self.feed_forward_add_norm = self._add_norm("feed_forward_add_norm")

    def build(self, inputs_shape, encoder_output_shape):
        self.self_attention.build(inputs_shape, inputs_shape)
        self.self_attention_add_norm.build(inputs_shape, inputs_shape)
        self.cross_attention.build(inputs_shape, encoder_output_shape)
        self.cross_attention_add_norm.build(inputs_shape, inputs_shape)
        self.feed_forward.build(inputs_shape)
        self.feed_forward_add_norm.build(inputs_shape, inputs_shape)

    def call(
        self,
        inputs,
        encoder_output,
        source_mask=None,
        encoder_output_mask=None,
        return_attention_scores=False,
        training=None,
    ):
        """Applies the three sublayers to a whole target at once.

        Args:
            inputs: `[batch, target_length, d_model]`. Padding must follow the tokens,
                so that the causal mask hides it.
            encoder_output: `[batch, source_length, d_model]`.
            source_mask: `[batch, source_length]`, bool, True = token.
            encoder_output_mask: Mask of `encoder_output`, passed by Keras and used if
                there is no `source_mask`.
            return_attention_scores: Whether to also return the attention scores.
            training: Whether dropout is applied.

        Returns:
            `[batch, target_length, d_model]`. With `return_attention_scores`,
            `(output, (self_scores, cross_scores))`. `self_scores` is float32 `[batch,
            num_heads, target_length, target_length]`, and `cross_scores` is float32
            `[batch, num_heads, target_length, source_length]`.
        """
        mask = encoder_output_mask if source_mask is None else source_mask
        scores = [] if return_attention_scores else None

        def attend(attention, query, value, **options):
            return collect_scores(
                attention, scores, query, value, **options, training=training
            )

        x = self.transform(
            inputs,
            lambda y: attend(self.self_attention, y, y, use_causal_mask=True),
            lambda y: attend(self.cross_attention, y, encoder_output, value_mask=mask),
            self.feed_forward,
            training,
        )
        return x if scores is None else (x, tuple(scores))

    def transform(self, x, attend_self, attend_cross, feed_forward, training=None):
        """Applies three functions of vectors `[..., d_model]` as the sublayers.

        Returns:
            Vectors with the shape of `x`.
        """
        x = self.self_attention_add_norm.apply(x, attend_self, training)
        x = self.cross_attention_add_norm.apply(x, attend_cross, training)
        return self.feed_forward_add_norm.apply(x, feed_forward, training)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(Stack):
    """The decoder: a stack of `num_layers` decoder layers.

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
        >>> decoder = kt.layers.Decoder(num_layers=2, num_heads=2, key_dim=4, d_ff=16)
        >>> x, encoder_output = keras.ops.ones((1, 2, 8)), keras.ops.ones((1, 3, 8))
        >>> print(decoder(x, encoder_output).shape)
        (1, 2, 8)
    """

    layer_class = DecoderLayer

    # Keras passes the shapes of the arguments of `call` by these names.
    def build(self, inputs_shape, encoder_output_shape):
        super().build(inputs_shape, encoder_output_shape)

    def call(
        self,
        inputs,
        encoder_output,
        source_mask=None,
        encoder_output_mask=None,
        return_attention_scores=False,
        training=None,
    ):
        """Decodes a whole target at once.

        Args:
            inputs: `[batch, target_length, d_model]`. Padding must follow the tokens.
            encoder_output: `[batch, source_length, d_model]`.
            source_mask: `[batch, source_length]`, bool, True = token.
            encoder_output_mask: Mask of `encoder_output`, passed by Keras and used if
                there is no `source_mask`.
            return_attention_scores: Whether to also return the attention scores.
            training: Whether dropout is applied.

        Returns:
            `[batch, target_length, d_model]`. Position i depends only on target
            positions up to i. With `return_attention_scores`, `(output, scores)`, where
            `scores` is a list with one pair `(self_scores, cross_scores)` per layer
            (see `DecoderLayer`).
        """
        mask = encoder_output_mask if source_mask is None else source_mask
        scores = [] if return_attention_scores else None
        options = {"source_mask": mask, "training": training}
        x = self.apply_layers(inputs, scores, encoder_output, **options)
        return x if scores is None else (x, scores)
