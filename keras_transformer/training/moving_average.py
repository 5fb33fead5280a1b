"""Exponential moving average of the weights."""

import contextlib


class MovingAverage:
    """Moving average of the weights, which the model's optimizer computes.

    A Keras optimizer with `use_ema=True` computes `average = ema_momentum * average +
    (1 - ema_momentum) * weight` after each update. The first average equals the weights
    after the first update. Skipped updates leave the average unchanged. Without
    `use_ema`, this class changes nothing.

    When `fit` ends, on JAX also by an exception, Keras would replace the weights with
    their average. This class prevents it, because later calls of `fit` must continue
    with the weights themselves. Keras's `SwapEMAWeights` would change their last bits:
    it swaps weights and average by adding and subtracting them.
    """

    def __init__(self, model):
        self._training_model = model
        # The optimizer inside a `LossScaleOptimizer` computes the average.
        self._optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        self.is_used = self._optimizer.use_ema
        self._weights = None
        if self.is_used:
            self._optimizer.finalize_variable_values = lambda variables: None
        if self.is_used and not self._optimizer.iterations.numpy():
            # Keras initializes the averages with zeros. A checkpoint that is written
            # before the first update would store them. On JAX, `fit` reuses the arrays
            # of variables, so the two must not share one.
            for weight, average in self.pairs():
                average.assign(weight.numpy())

    def pairs(self):
        """Returns a list of (trainable variable, average), empty without averages."""
        if not self.is_used:
            return []
        # Keras has no public attribute for the averages.
        averages = [
            each for each in self._optimizer.variables if each.name.endswith("_average")
        ]
        return [*zip(self._training_model.trainable_variables, averages, strict=True)]

    @contextlib.contextmanager
    def use_average(self):
        """Replaces the weights with their average inside the context."""
        if not self.is_used:
            yield
            return
        model = self._training_model
        try:
            self._weights = model.transformer.get_weights()
            for weight, average in self.pairs():
                weight.assign(average)
            yield
        finally:
            self.restore()

    def restore(self):
        """Restores the weights if `use_average` has replaced them.

        An interruption inside `use_average` may call it before the context exits.
        """
        if self._weights is not None:
            self._training_model.transformer.set_weights(self._weights)
            self._weights = None
