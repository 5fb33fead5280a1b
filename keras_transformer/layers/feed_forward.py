"""Position-wise feed-forward network (section 3.3 of the paper)."""

import keras

from keras_transformer.layers.base import Dense, child_layer
from keras_transformer.numerics.activations import activation_name, get_activation


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(keras.layers.Layer):
    """Feed-forward network `max(0, x W_1 + b_1) W_2 + b_2` (equation 2).

    Args:
        d_ff: Inner width.
        activation: Name or function of the activation between the projections.

    Raises:
        ValueError: If `d_ff` is below 1, or `activation` is unknown.

    Examples:
        >>> kt.layers.FeedForward(d_ff=32)(keras.ops.zeros((1, 3, 8))).shape
        TensorShape([1, 3, 8])
    """

    def __init__(self, d_ff, activation="relu", **kwargs):
        super().__init__(**kwargs)
        if d_ff < 1:
            raise ValueError(f"`d_ff` must be at least 1. Received: {d_ff}.")
        self.d_ff = d_ff
        self.activation = get_activation(activation)
        self.supports_masking = True
        self.inner_dense = child_layer(
            self, Dense, "inner", d_ff, activation=self.activation
        )

    def build(self, input_shape):
        self.inner_dense.build(input_shape)
        self.outer_dense = child_layer(self, Dense, "outer", input_shape[-1])
        self.outer_dense.build((*input_shape[:-1], self.d_ff))

    def call(self, inputs):
        """Applies the network to each vector of `[batch, length, d_model]`.

        Returns:
            `[batch, length, d_model]`.
        """
        return self.outer_dense(self.inner_dense(inputs))

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "d_ff": self.d_ff,
            "activation": activation_name(self.activation),
        }
