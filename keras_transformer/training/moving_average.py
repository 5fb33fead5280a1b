"""Exponential moving average of the weights."""

import contextlib

import keras
import tensorflow as tf


class MovingAverage(keras.callbacks.Callback):
    """The moving average of the weights that a model's optimizer computes.

    A Keras optimizer with `use_ema=True` computes `average = ema_momentum * average +
    (1 - ema_momentum) * weight` after each update. The first average is the weights
    after the first update. Skipped updates leave the average unchanged.

    As a callback, it keeps `fit` from replacing the weights by their average at its
    end, since training continues with the weights: in the next stage, or after a
    resume.

    Args:
        model: A `TrainingModel` whose optimizer is built. Without `use_ema`, this class
            changes nothing.
    """

    def __init__(self, model):
        super().__init__()
        self._training_model = model
        # The optimizer inside a `LossScaleOptimizer` computes the average.
        self._optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        self.is_used = self._optimizer.use_ema
        self._weights = None
        if self.is_used and not int(tf.convert_to_tensor(self._optimizer.iterations)):
            # Keras begins with zeros, which checkpoints before an update would store.
            for weight, average in self.pairs():
                average.assign(weight)

    def pairs(self):
        """Returns the pairs of a trainable variable and its average."""
        if not self.is_used:
            return []
        # Keras has no public name for the averages.
        averages = self._optimizer._model_variables_moving_average
        return [*zip(self._training_model.trainable_variables, averages, strict=True)]

    @contextlib.contextmanager
    def applied(self):
        """Replaces the weights by their average inside the context."""
        if not self.is_used:
            yield
            return
        model = self._training_model
        try:
            self._weights = model.transformer.get_weights()
            self._optimizer.finalize_variable_values(model.trainable_variables)
            yield
        finally:
            self.restore()

    def restore(self):
        """Sets the weights that `applied` has replaced, also if a signal ended it."""
        if self._weights is not None:
            self._training_model.transformer.set_weights(self._weights)
            self._weights = None

    def on_epoch_end(self, epoch, logs=None):
        self._optimizer.use_ema = False

    def on_train_end(self, logs=None):
        self._optimizer.use_ema = self.is_used
