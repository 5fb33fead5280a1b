"""Dropout (section 5.4 of the paper) with two units per 32-bit random number."""

import keras
from keras import ops

from keras_transformer.numerics.gradients import custom_gradient
from keras_transformer.numerics.indexing import view
from keras_transformer.numerics.seeds import per_replica

# A unit is dropped if a random int16 is below a bound. `LEVELS` is the number of int16
# values, and `LOWEST` the smallest one.
LEVELS = 1 << 16
LOWEST = -(1 << 15)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(keras.layers.Dropout):
    """Keras's `Dropout`, but with half as many random numbers.

    On a CPU, drawing random numbers takes most of the time of dropout. The rate is
    rounded to a multiple of 2^-16. Kept units are divided by 1 minus the rounded rate,
    so that the expected output is the input. Arguments and saved state match
    `keras.layers.Dropout`.
    """

    def call(self, inputs, training=False):
        """Returns `inputs`, of which random units are dropped if `training`."""
        dropped_levels = round(self.rate * LEVELS)
        if self.noise_shape is not None or dropped_levels == LEVELS:
            return super().call(inputs, training=training)
        if not training or not dropped_levels:
            return inputs
        kept = self._draw(ops.shape(inputs), LOWEST + dropped_levels)
        scale = LEVELS / (LEVELS - dropped_levels)

        # For the gradient, only the booleans `kept` are stored. They take a quarter of
        # the memory of float32 factors.
        @custom_gradient
        def drop(x):
            def gradient(upstream):
                return upstream * (ops.cast(kept, upstream.dtype) * scale)

            return x * (ops.cast(kept, x.dtype) * scale), gradient

        return drop(inputs)

    def _draw(self, shape, bound):
        """Draws a bool array: True (keep) if a random int16 is at least `bound`."""
        size = 1
        for length in shape:
            size = size * length
        # `randint` excludes its upper limit, which must be an int32. So it never draws
        # 2^31 - 1.
        seed = per_replica(self.seed_generator)
        numbers = keras.random.randint(
            ((size + 1) // 2, 1), -(2**31), 2**31 - 1, "int32", seed
        )
        # `ops.view` would reshape the numbers first. TensorFlow reshapes int32 arrays
        # in the memory of the CPU, even on a GPU.
        bits = ops.reshape(view(numbers, "int16"), (-1,))
        return ops.reshape(bits[:size] >= bound, shape)
