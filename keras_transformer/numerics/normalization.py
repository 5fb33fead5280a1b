"""Layer normalisation (section 3.1) in few passes over memory."""

import keras
from keras import ops

from keras_transformer.numerics.gradients import own_gradient


@keras.saving.register_keras_serializable(package="keras_transformer")
class LayerNormalization(keras.layers.LayerNormalization):
    """Keras's `LayerNormalization`, in about half the time over the last axis.

    Keras writes out several arrays as large as the input; here the row's factors stay
    one number a row until they are applied. Arguments, weights and results are those
    of `keras.layers.LayerNormalization`: at least float32 inside, whatever the inputs.
    """

    def call(self, inputs, training=False):
        """`[..., width]` to the same shape, in `training` with a cheaper gradient."""
        if self.axis not in ([-1], [len(inputs.shape) - 1]) or self.rms_scaling:
            return super().call(inputs)
        dtype = keras.backend.result_type(inputs.dtype, "float32")
        x = ops.cast(inputs, dtype)
        if training:
            normalized = own_gradient(self._normalize_with_gradient)(x)
        else:
            normalized, _ = self._normalize(x)
        if self.gamma is not None:
            normalized = normalized * ops.cast(self.gamma, dtype)
        if self.beta is not None:
            normalized = normalized + ops.cast(self.beta, dtype)
        return ops.cast(normalized, self.compute_dtype)

    def _normalize(self, x):
        """Rows of mean 0 and variance 1, and what each was multiplied by."""
        centred = x - ops.mean(x, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
        factors = ops.rsqrt(variance + self.epsilon)
        return centred * factors, factors

    def _normalize_with_gradient(self, x):
        """Its gradient in fewer passes; a SavedModel cannot hold it."""
        normalized, factors = self._normalize(x)

        def gradient(upstream):
            share = 1.0 / x.shape[-1]
            mean = ops.sum(upstream, axis=-1, keepdims=True) * share
            along = ops.sum(upstream * normalized, axis=-1, keepdims=True) * share
            return (upstream - normalized * along - mean) * factors

        return normalized, gradient
