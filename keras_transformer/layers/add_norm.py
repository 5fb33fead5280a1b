"""Residual connection and layer normalization (section 3.1 of the paper)."""

import keras

from keras_transformer.arguments import NORM_PLACES, require_choice
from keras_transformer.layers.base import child_layer
from keras_transformer.numerics.dropout import Dropout
from keras_transformer.numerics.normalization import LayerNormalization


@keras.saving.register_keras_serializable(package="keras_transformer")
class AddNorm(keras.layers.Layer):
    """The paper's Add & Norm, `LayerNorm(x + Dropout(Sublayer(x)))`.

    With `normalization="pre"`, it is `x + Dropout(Sublayer(LayerNorm(x)))`. Pre-norm
    models need a shorter warm-up, and their stacks end in one more layer normalization.
    `apply` wraps a sublayer in either.

    Args:
        dropout: Dropout rate of the sublayer's output (section 5.4).
        normalization: `"post"` (the paper) or `"pre"`.
        layer_norm_epsilon: Constant added to the variance.

    Raises:
        ValueError: If `dropout` is outside [0, 1], or `normalization` is unknown.

    Examples:
        >>> x = keras.ops.convert_to_tensor([[1.0, 3.0]])
        >>> kt.layers.AddNorm()(x, x).numpy().round(3).tolist()
        [[-1.0, 1.0]]
    """

    def __init__(
        self, dropout=0.0, normalization="post", layer_norm_epsilon=1e-6, **kwargs
    ):
        super().__init__(**kwargs)
        require_choice("normalization", normalization, NORM_PLACES)
        self.dropout = dropout
        self.normalization = normalization
        self.layer_norm_epsilon = layer_norm_epsilon
        self.supports_masking = True
        self.dropout_layer = child_layer(self, Dropout, "dropout", dropout)
        self.layer_norm = child_layer(
            self, LayerNormalization, "layer_norm", epsilon=layer_norm_epsilon
        )

    def build(self, inputs_shape, sublayer_output_shape=None):
        self.dropout_layer.build(inputs_shape)
        self.layer_norm.build(inputs_shape)

    def apply(self, inputs, sublayer, training=None):
        """Wraps `sublayer`, a function of vectors with the shape of `inputs`.

        Returns:
            Vectors with the shape of `inputs`.
        """
        is_pre = self.normalization == "pre"
        output = sublayer(self.layer_norm(inputs) if is_pre else inputs)
        return self(inputs, output, training=training)

    def call(self, inputs, sublayer_output, training=None):
        """Adds a sublayer's output to `inputs`, both `[..., d_model]`.

        The sum is normalized if `normalization` is `"post"`. If it is `"pre"`, the
        sublayer's input must have been normalized, as `apply` does.

        Returns:
            Vectors with the shape of `inputs`.
        """
        summed = inputs + self.dropout_layer(sublayer_output, training=training)
        return self.layer_norm(summed) if self.normalization == "post" else summed

    def compute_output_shape(self, inputs_shape, sublayer_output_shape=None):
        return inputs_shape

    def get_config(self):
        return {
            **super().get_config(),
            "dropout": self.dropout,
            "normalization": self.normalization,
            "layer_norm_epsilon": self.layer_norm_epsilon,
        }
