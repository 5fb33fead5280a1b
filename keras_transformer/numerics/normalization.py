"""Layer normalization (section 3.1 of the paper) with few passes over memory."""

import keras
from keras import ops

from keras_transformer.numerics.gradients import custom_gradient


@keras.saving.register_keras_serializable(package="keras_transformer")
class LayerNormalization(keras.layers.LayerNormalization):
    """Keras's `LayerNormalization`, but faster over the last axis.

    Keras's layer writes several arrays of the input's size to memory. This layer
    computes one mean and one factor (1 / standard deviation) per row. For the gradient,
    it stores only the normalized rows and the factors. Arguments, weights and results
    match `keras.layers.LayerNormalization`. Statistics are computed in float32, or in
    float64 for float64 inputs on TensorFlow.
    """

    def call(self, inputs, training=False):
        """Normalizes `[..., width]`.

        If `training`, a custom gradient is used, which needs fewer memory passes. A
        SavedModel cannot store it.

        Returns:
            `[..., width]` in the compute dtype.
        """
        if self.axis not in ([-1], [len(inputs.shape) - 1]) or self.rms_scaling:
            return super().call(inputs)
        dtype = keras.backend.result_type(inputs.dtype, "float32")
        x = ops.cast(inputs, dtype)
        if training:
            normalized = custom_gradient(self._normalize_with_gradient)(x)
        else:
            normalized, _ = self._normalize(x)
        if self.gamma is not None:
            normalized = normalized * ops.cast(self.gamma, dtype)
        if self.beta is not None:
            normalized = normalized + ops.cast(self.beta, dtype)
        return ops.cast(normalized, self.compute_dtype)

    def _normalize(self, x):
        """Returns rows of mean 0 and variance 1, and each row's factor.

        The factors `[..., 1]` are 1 / standard deviation of the rows of `x`.
        """
        centered = x - ops.mean(x, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)
        factors = ops.rsqrt(variance + self.epsilon)
        return centered * factors, factors

    def _normalize_with_gradient(self, x):
        """Returns the normalized rows, and a function that computes the gradient."""
        normalized, factors = self._normalize(x)

        def gradient(upstream):
            scale = 1.0 / x.shape[-1]
            mean = ops.sum(upstream, axis=-1, keepdims=True) * scale
            projection = ops.sum(upstream * normalized, axis=-1, keepdims=True) * scale
            return (upstream - normalized * projection - mean) * factors

        return normalized, gradient
