"""Label-smoothed cross-entropy (section 5.4 of the paper).

`projected_loss.py` computes the same loss, fused with the output projection.
`tests/training/test_projected_loss.py` compares the two implementations.
"""

import keras
from keras import ops

from keras_transformer.training.replicas import global_sum


def replace_padding(labels, pad_id):
    """Replaces padding in the labels with id 0, because padding may have no logit.

    Returns:
        The labels as int32, and their weights as float32: 0 for padding, else 1. Both
        have the shape of the labels, `[batch, target_length]`.
    """
    labels = ops.cast(labels, "int32")
    is_token = ops.not_equal(labels, pad_id)
    return ops.where(is_token, labels, 0), ops.cast(is_token, "float32")


def cross_entropy(labels, logits):
    """Computes the negative log-likelihood of each label, in nats.

    Labels and result `[batch, target_length]`, logits `[batch, target_length,
    vocabulary_size]`. The result is float32.
    """
    logits = ops.cast(logits, "float32")
    return ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def smoothed_cross_entropy(labels, logits, label_smoothing):
    """Computes the label-smoothed cross-entropy of each label, in nats.

    With e = `label_smoothing`, the loss is `(1 - e) * nll + e * (mean nll over the
    vocabulary)`. It is computed as `nll + e * (logit of the label - mean logit)`, which
    is equivalent and needs no one-hot tensor. Shapes are those of `cross_entropy`.
    """
    loss = cross_entropy(labels, logits)
    if not label_smoothing:
        return loss
    logits = ops.cast(logits, "float32")
    label_logits = ops.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return loss + label_smoothing * (label_logits - ops.mean(logits, axis=-1))


@keras.saving.register_keras_serializable(package="keras_transformer")
class SmoothedCrossEntropy(keras.losses.Loss):
    """Mean of the label-smoothed cross-entropy over target tokens, without padding.

    The divisor is the number of target tokens in the global batch, or the sum of their
    sample weights. Tokens therefore have the same weight on all replicas of
    `tf.distribute`. The loss of a batch without tokens is 0.

    Args:
        label_smoothing: Probability mass spread over the vocabulary, in [0, 1).
        pad_id: Label to ignore.
        name: Name of the loss.
        **kwargs: `reduction` and `dtype` of `keras.losses.Loss`, which have no effect.

    Raises:
        ValueError: If `label_smoothing` is outside [0, 1).

    Examples:
        >>> loss = kt.training.SmoothedCrossEntropy(label_smoothing=0.1)
        >>> labels = keras.ops.convert_to_tensor([[5, 3, 0]])
        >>> print(f"{float(loss(labels, keras.ops.zeros((1, 3, 8)))):.4f}")  # log(8)
        2.0794
    """

    def __init__(
        self, label_smoothing=0.1, pad_id=0, name="smoothed_cross_entropy", **kwargs
    ):
        super().__init__(name=name, **kwargs)
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                f"`label_smoothing` must be in [0, 1). Received: {label_smoothing}."
            )
        self.label_smoothing = label_smoothing
        self.pad_id = pad_id

    def __call__(self, y_true, y_pred, sample_weight=None):
        """Computes the mean loss.

        Args:
            y_true: Labels `[batch, target_length]`, integers.
            y_pred: Logits `[batch, target_length, vocabulary_size]`.
            sample_weight: `[batch]` or `[batch, target_length]`. If `None`, every token
                has weight 1.

        Returns:
            Scalar, float32. The sum over all replicas is the mean over the tokens of
            the global batch.

        Raises:
            ValueError: If an argument has another number of axes.
        """
        ranks = [len(ops.shape(each)) for each in (y_true, y_pred)]
        if ranks != [2, 3]:
            raise ValueError(
                "Labels must have 2 axes and logits 3. Received arrays with "
                f"{ranks[0]} and {ranks[1]} axes."
            )
        labels, weights = replace_padding(y_true, self.pad_id)
        if sample_weight is not None:
            sample_weight = ops.cast(sample_weight, "float32")
            if len(sample_weight.shape) == 1:
                sample_weight = sample_weight[:, None]
            if len(sample_weight.shape) != 2:
                raise ValueError(
                    "`sample_weight` must have 1 or 2 axes. Received shape: "
                    f"{tuple(sample_weight.shape)}."
                )
            weights = weights * sample_weight
        tokens = global_sum(ops.sum(weights))
        losses = smoothed_cross_entropy(labels, y_pred, self.label_smoothing)
        # Optimizers sum the gradients of the replicas, so each replica returns its
        # share of the mean.
        return ops.sum(losses * weights) / ops.maximum(tokens, 1e-9)

    def call(self, y_true, y_pred):
        """Returns the loss at each position. At padding, it has no meaning.

        Keras requires this method. `__call__` does not use it.
        """
        labels, _ = replace_padding(y_true, self.pad_id)
        return smoothed_cross_entropy(labels, y_pred, self.label_smoothing)

    def get_config(self):
        return {
            **super().get_config(),
            "label_smoothing": self.label_smoothing,
            "pad_id": self.pad_id,
        }
