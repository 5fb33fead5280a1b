"""Perplexity and accuracy over target tokens."""

import keras
from keras import ops

from keras_transformer.training.losses import cross_entropy, replace_padding


class TokenMean(keras.metrics.Metric):
    """Mean over target tokens of one value per token.

    A subclass computes the values in `token_values(labels, logits)`, which returns
    `[batch, target_length]`. A caller that has already summed the values uses
    `update_sums` instead of `update_state`.
    """

    def __init__(self, pad_id=0, name=None, **kwargs):
        super().__init__(name=name, **kwargs)
        self.pad_id = pad_id
        self.total = self.add_variable((), "zeros", name="total")
        self.tokens = self.add_variable((), "zeros", name="tokens")

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds the values of a batch. All tokens have the same weight.

        Args:
            y_true: Labels `[batch, target_length]`, integers.
            y_pred: Logits `[batch, target_length, vocabulary_size]`.
            sample_weight: Ignored.
        """
        labels, weights = replace_padding(y_true, self.pad_id)
        values = self.token_values(labels, y_pred)
        self.update_sums(ops.sum(values * weights), ops.sum(weights))

    def update_sums(self, total, tokens):
        """Adds `total`, a sum of values over tokens, and `tokens`, their weight."""
        self.total.assign_add(ops.cast(total, self.total.dtype))
        self.tokens.assign_add(ops.cast(tokens, self.tokens.dtype))

    def result(self):
        return ops.divide_no_nan(self.total, self.tokens)

    def get_config(self):
        return {**super().get_config(), "pad_id": self.pad_id}


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(TokenMean):
    """Exponential of the mean negative log-likelihood per token, without smoothing.

    Args:
        pad_id: Label to ignore.

    Examples:
        >>> metric = kt.training.Perplexity()
        >>> labels = keras.ops.convert_to_tensor([[5, 3, 0]])  # 0 is padding
        >>> metric.update_state(labels, keras.ops.zeros((1, 3, 8)))
        >>> round(float(metric.result()), 3)
        8.0
    """

    def __init__(self, pad_id=0, name="perplexity", **kwargs):
        super().__init__(pad_id, name, **kwargs)

    def token_values(self, labels, logits):
        return cross_entropy(labels, logits)

    def result(self):
        return ops.exp(super().result())


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenAccuracy(TokenMean):
    """Fraction of target tokens that have the highest logit at their position.

    Args:
        pad_id: Label to ignore.

    Examples:
        >>> metric = kt.training.TokenAccuracy()
        >>> labels = keras.ops.convert_to_tensor([[5, 3, 0]])  # 0 is padding
        >>> metric.update_state(labels, keras.ops.one_hot([[5, 4, 1]], 8))
        >>> float(metric.result())
        0.5
    """

    def __init__(self, pad_id=0, name="accuracy", **kwargs):
        super().__init__(pad_id, name, **kwargs)

    def token_values(self, labels, logits):
        # On a CPU, a maximum costs a fraction of an argmax.
        label_logits = ops.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        return ops.cast(label_logits >= ops.max(logits, axis=-1), "float32")
