"""The encoder: a stack of encoder layers (section 3.1 of the paper)."""

import keras

from keras_transformer.layers.encoder_layer import EncoderLayer
from keras_transformer.layers.masks import combine_masks
from keras_transformer.layers.stack import Stack


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(Stack):
    """Stack of `num_layers` encoder layers.

    Args:
        num_layers: Number of layers, N.
        num_heads: Number of attention heads.
        key_dim: Width of queries and keys per head.
        d_ff: Inner width of the feed-forward networks.
        **kwargs: Further arguments of `TransformerLayer`, such as `dropout`.

    Raises:
        ValueError: If a size is below 1, a rate is out of range, or an option is
            unknown.
    """

    layer_class = EncoderLayer

    def build(self, inputs_shape):
        for layer in self.layers:
            layer.build(inputs_shape)
        if self.final_norm is not None:
            self.final_norm.build(inputs_shape)

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
            inputs: Embeddings with positions, `[batch, source_length, d_model]`.
            source_mask: `[batch, source_length]`, bool, True = token.
            mask: Keras mask of `inputs`. Keras passes it only if `source_mask` is
                `None`. Otherwise, the attention layers get it from their inputs and
                combine it with `source_mask`.
            return_attention_scores: Whether to also return the attention scores.
            training: Whether dropout is applied.

        Returns:
            `[batch, source_length, d_model]`. With `return_attention_scores`,
            `(output, scores)`, where `scores` is a list with one tensor per layer,
            float32 `[batch, num_heads, source_length, source_length]`.
        """
        source_mask = combine_masks(source_mask, mask)
        return self.run(
            inputs,
            attention_mask=None if source_mask is None else source_mask[:, None, :],
            return_attention_scores=return_attention_scores,
            training=training,
        )
