"""Adam (section 5.3 of the paper) with a fused update."""

import contextvars

import keras

# Numbers that the variables share in a call of `FusedAdam.apply`, by their dtype.
_scalars = contextvars.ContextVar("scalars")


@keras.saving.register_keras_serializable(package="keras_transformer")
class FusedAdam(keras.optimizers.Adam):
    """Keras's `Adam` with one fused TensorFlow operation per variable.

    Keras's update consists of a dozen operations, each of which reads and writes whole
    tensors. Arguments, slots and results match `keras.optimizers.Adam`. With `amsgrad`,
    or on another backend, this class uses Keras's update.

    Defaults are those of Keras. The paper has `beta_2=0.98` and `epsilon=1e-9` (section
    5.3).

    Examples:
        >>> schedule = kt.training.NoamSchedule(d_model=512)
        >>> optimizer = kt.training.FusedAdam(schedule, beta_2=0.98, epsilon=1e-9)
        >>> weight = keras.Variable([1.0])
        >>> optimizer.apply([keras.ops.ones((1,))], [weight])
        >>> f"{float(1.0 - weight[0]):.1e}"
        '1.8e-07'
    """

    def apply(self, grads, trainable_variables=None):
        """Updates all variables and their slots."""
        token = _scalars.set({})
        try:
            return super().apply(grads, trainable_variables)
        finally:
            _scalars.reset(token)

    def update_step(self, gradient, variable, learning_rate):
        """Updates a variable and its slots."""
        if self.amsgrad or keras.config.backend() != "tensorflow":
            super().update_step(gradient, variable, learning_rate)
            return
        import tensorflow as tf

        index = self._get_variable_index(variable)
        # The threads of a `tf.distribute.Strategy` share nothing.
        shared = _scalars.get({})
        dtype = variable.dtype
        if dtype not in shared:
            shared[dtype] = self._scalars_of(dtype, learning_rate)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            grad=tf.cast(tf.convert_to_tensor(gradient), dtype),
            **shared[dtype],
        )

    def _scalars_of(self, dtype, learning_rate):
        import tensorflow as tf

        step = tf.cast(tf.convert_to_tensor(self.iterations) + 1, dtype)
        beta_1, beta_2 = (tf.cast(beta, dtype) for beta in (self.beta_1, self.beta_2))
        return {
            "beta1_power": tf.pow(beta_1, step),
            "beta2_power": tf.pow(beta_2, step),
            "lr": tf.cast(learning_rate, dtype),
            "beta1": beta_1,
            "beta2": beta_2,
            "epsilon": tf.cast(self.epsilon, dtype),
        }
