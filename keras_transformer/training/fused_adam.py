"""Adam (section 5.3 of the paper) with a fused update."""

import keras


@keras.saving.register_keras_serializable(package="keras_transformer")
class FusedAdam(keras.optimizers.Adam):
    """Keras's `Adam` with one fused TensorFlow operation per variable.

    Keras's update consists of a dozen operations, each of which reads and writes whole
    tensors. Arguments, slots and results match `keras.optimizers.Adam`. With `amsgrad`,
    or on another backend, this class uses Keras's update.
    """

    def update_step(self, gradient, variable, learning_rate):
        """Updates a variable and its slots."""
        if self.amsgrad or keras.config.backend() != "tensorflow":
            super().update_step(gradient, variable, learning_rate)
            return
        import tensorflow as tf

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
