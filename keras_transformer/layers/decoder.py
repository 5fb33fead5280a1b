"""The decoder: a stack of decoder layers (section 3.1 of the paper)."""

import keras

from keras_transformer.layers.decoder_layer import DecoderLayer
from keras_transformer.layers.stack import Stack


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(Stack):
    """Stack of `num_layers` decoder layers.

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

    layer_class = DecoderLayer

    def build(self, inputs_shape, encoder_output_shape):
        for layer in self.layers:
            layer.build(inputs_shape, encoder_output_shape)
        if self.final_norm is not None:
            self.final_norm.build(inputs_shape)

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
            inputs: Embeddings with positions, `[batch, target_length, d_model]`.
                Padding must follow the tokens, so that the causal mask hides it.
            encoder_output: `[batch, source_length, d_model]`.
            source_mask: `[batch, source_length]`, bool, True = token.
            encoder_output_mask: Keras mask of `encoder_output`, passed by Keras and
                combined with `source_mask`.
            return_attention_scores: Whether to also return the attention scores.
            training: Whether dropout is applied.

        Returns:
            `[batch, target_length, d_model]`. Position i depends only on target
            positions up to i. With `return_attention_scores`, `(output, scores)`, where
            `scores` is a list with one pair `(self_scores, cross_scores)` per layer
            (see `DecoderLayer`).
        """
        return self.run(
            inputs,
            encoder_output,
            source_mask=source_mask,
            encoder_output_mask=encoder_output_mask,
            return_attention_scores=return_attention_scores,
            training=training,
        )
