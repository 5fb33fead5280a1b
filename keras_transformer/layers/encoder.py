"""The encoder: a stack of encoder layers (section 3.1)."""

import keras
from keras import ops

from keras_transformer.layers.encoder_layer import EncoderLayer
from keras_transformer.layers.masks import combine_masks
from keras_transformer.layers.stack import Stack


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(Stack):
    """`num_layers` encoder layers over vectors that carry their positions.

    Args:
        num_layers: Number of layers, N.
        num_heads: Number of attention heads.
        key_dim: Width of queries and keys per head.
        d_ff: Inner width of the feed-forward networks.
        **kwargs: As `EncoderLayer`.
    """

    layer_class = EncoderLayer

    def build(self, inputs_shape):
        for layer in self.layers:
            layer.build(inputs_shape)
        if self.final_norm is not None:
            self.final_norm.build(inputs_shape)

    def call(self, inputs, source_mask=None, mask=None, training=None):
        """Encodes a source.

        Args:
            inputs: `[batch, source_length, d_model]`.
            source_mask: `[batch, source_length]`, bool, True = token.
            mask: The same, filled in by Keras; joined with `source_mask`.
            training: Whether dropout is applied.

        Returns:
            `encoder_output`, `[batch, source_length, d_model]`.
        """
        source_mask = combine_masks(source_mask, mask)
        attention_mask = None if source_mask is None else source_mask[:, None, :]
        x = inputs
        for layer in self.layers:
            x = layer(x, attention_mask=attention_mask, training=training)
        return self._normalize(x)

    def self_attention_scores(self, inputs, source_mask=None):
        """Where each layer looks in the source, without dropout.

        Args:
            inputs: `[batch, source_length, d_model]`.
            source_mask: `[batch, source_length]`, bool, True = token.

        Returns:
            `[batch, num_layers, num_heads, source_length, source_length]`, float32.
        """
        attention_mask = None if source_mask is None else source_mask[:, None, :]
        x = inputs
        scores = []
        for layer in self.layers:
            normalized = layer.self_attention_add_norm.sublayer_input(x)
            scores.append(layer.self_attention.self_scores(normalized, source_mask))
            x = layer(x, attention_mask=attention_mask, training=False)
        return ops.stack(scores, axis=1)

    def compute_output_shape(self, inputs_shape):
        return inputs_shape
