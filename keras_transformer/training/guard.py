"""Numbers that are none: found inside the step, kept out of the weights.

A step whose loss or gradient is not finite, whose gradient is larger than it may be, or
that has no target token, updates nothing: neither weights nor the optimizer's slots and
step. Whether to go on after it is for the `SkippedUpdates` callback to say.
"""

import tensorflow as tf

from keras_transformer.training.replicas import global_sum

OK, NO_TOKENS, LOSS, GRADIENT, EXPLOSION = range(5)
REASONS = {
    NO_TOKENS: "no target token",
    LOSS: "the loss is not finite",
    GRADIENT: "the gradient is not finite",
    EXPLOSION: "the gradient's norm exceeds training.max_gradient_norm",
}
# Overflows at a scale below this are no longer the scale's fault (fairseq's bound).
MIN_LOSS_SCALE = 1e-4


def fault_of(tokens, loss_sum, gradient_sum, loss_scale=None, too_large=False):
    """What is wrong with a step, the same on all replicas.

    Args:
        tokens: Target tokens of the global batch, float32 scalar.
        loss_sum: This replica's sum of the loss.
        gradient_sum: Of all components of this replica's gradients.
        loss_scale: Scale of the loss under float16, whose overflows the optimizer
            answers by a lower scale. None: not scaled.
        too_large: Whether the gradient's norm exceeds its limit, boolean scalar.

    Returns:
        int32 scalar: `OK` or a key of `REASONS`.
    """
    bad = tf.stack([~tf.math.is_finite(loss_sum), ~tf.math.is_finite(gradient_sum)])
    bad = global_sum(tf.cast(bad, tf.float32)) > 0
    bad_gradient = bad[1]
    if loss_scale is not None:
        bad_gradient &= loss_scale < MIN_LOSS_SCALE
    fault = tf.where(too_large, EXPLOSION, OK)
    fault = tf.where(bad_gradient, GRADIENT, fault)
    fault = tf.where(bad[0], LOSS, fault)
    return tf.where(tokens > 0, fault, NO_TOKENS)


def apply_if(condition, optimizer, gradients, variables):
    """`optimizer.apply_gradients` where `condition` holds, else nothing at all.

    Args:
        condition: Boolean scalar, the same on all replicas.
        optimizer: A built Keras optimizer.
        gradients: Of this replica, as `apply_gradients` takes them.
        variables: As many.
    """

    def apply(*gradients):
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    if not tf.distribute.has_strategy():
        _run_if(condition, lambda: apply(*gradients))
        return

    # An update merges the replicas, which a branch inside of one must not.
    def apply_on_all(strategy, condition, *gradients):
        _run_if(
            strategy.experimental_local_results(condition)[0],
            lambda: strategy.extended.call_for_each_replica(apply, args=gradients),
        )

    context = tf.distribute.get_replica_context()
    context.merge_call(apply_on_all, args=(condition, *gradients))


def _run_if(condition, function):
    def run():
        function()
        return tf.constant(True)

    tf.cond(condition, run, lambda: tf.constant(False))


def last_fault(model):
    """What was wrong with a `TrainingModel`'s last step: `OK` or a key of `REASONS`."""
    # A mirrored variable is no number for Keras.
    return int(tf.convert_to_tensor(model.last_fault))
