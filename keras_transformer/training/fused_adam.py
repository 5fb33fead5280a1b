"""Adam (section 5.3) as one pass over each variable."""

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="keras_transformer")
class FusedAdam(keras.optimizers.Adam):
    """Keras's `Adam`, each variable updated by one of TensorFlow's operations.

    Keras writes the update as a dozen operations, each a pass over memory. Arguments,
    slots and results are those of `keras.optimizers.Adam`; `amsgrad` is left to it.
    """

    def update_step(self, gradient, variable, learning_rate):
        """Updates one variable and its slots from its gradient."""
        if self.amsgrad:
            super().update_step(gradient, variable, learning_rate)
            return
        dtype = variable.dtype
        index = self._get_variable_index(variable)
        step = tf.cast(tf.convert_to_tensor(self.iterations) + 1, dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=tf.pow(tf.cast(self.beta_1, dtype), step),
            beta2_power=tf.pow(tf.cast(self.beta_2, dtype), step),
            lr=tf.cast(learning_rate, dtype),
            beta1=tf.cast(self.beta_1, dtype),
            beta2=tf.cast(self.beta_2, dtype),
            epsilon=tf.cast(self.epsilon, dtype),
            grad=tf.cast(tf.convert_to_tensor(gradient), dtype),
        )
