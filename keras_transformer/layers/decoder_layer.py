"""One layer of the decoder (section 3.1 of the paper, right of Figure 1)."""

import keras

from keras_transformer.layers.masks import combine_masks
from keras_transformer.layers.transformer_layer import (
    TransformerLayer,
    call_with_scores,
)


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderLayer(TransformerLayer):
    """Causal self-attention, cross-attention, and the feed-forward network.

    Each is wrapped in an `AddNorm`. `decoding.incremental.IncrementalDecoder.step`
    applies the same sublayers in the same order to one position at a time.

    Args:
        num_heads: Number of heads of both attentions.
        key_dim: Width of queries and keys per head.
        d_ff: Inner width of the feed-forward network.
        **kwargs: Further arguments of `TransformerLayer`, such as `dropout`. They apply
            to both attentions, except `attention_window`, which restricts
            self-attention only.

    Raises:
        ValueError: If a size is below 1, a rate is out of range, or an option is
            unknown.
    """

    def __init__(self, num_heads, key_dim, d_ff, **kwargs):
        super().__init__(num_heads, key_dim, d_ff, **kwargs)
        self.self_attention = self._self_attention()
        self.self_attention_add_norm = self._add_norm("self_attention_add_norm")
        self.cross_attention = self._attention("cross_attention")
        self.cross_attention_add_norm = self._add_norm("cross_attention_add_norm")
        self.feed_forward = self._feed_forward("feed_forward")
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
            encoder_output_mask: Keras mask of `encoder_output`, passed by Keras and
                combined with `source_mask`.
            return_attention_scores: Whether to also return the attention scores.
            training: Whether dropout is applied.

        Returns:
            `[batch, target_length, d_model]`. With `return_attention_scores`,
            `(output, (self_scores, cross_scores))`. `self_scores` is float32 `[batch,
            num_heads, target_length, target_length]`, and `cross_scores` is float32
            `[batch, num_heads, target_length, source_length]`.
        """
        options = {
            "return_attention_scores": return_attention_scores,
            "training": training,
        }
        mask = combine_masks(source_mask, encoder_output_mask)
        mask = None if mask is None else mask[:, None, :]
        x = inputs
        # Pre-norm normalizes in `sublayer_input`, post-norm after the sublayer.
        y = self.self_attention_add_norm.sublayer_input(x)
        # Padding follows the tokens, so the causal mask hides it.
        y, self_scores = call_with_scores(
            self.self_attention, y, y, use_causal_mask=True, **options
        )
        x = self.self_attention_add_norm(x, y, training=training)

        y = self.cross_attention_add_norm.sublayer_input(x)
        y, cross_scores = call_with_scores(
            self.cross_attention, y, encoder_output, attention_mask=mask, **options
        )
        x = self.cross_attention_add_norm(x, y, training=training)

        y = self.feed_forward(self.feed_forward_add_norm.sublayer_input(x))
        x = self.feed_forward_add_norm(x, y, training=training)
        return (x, (self_scores, cross_scores)) if return_attention_scores else x
