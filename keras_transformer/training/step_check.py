"""Detects invalid training steps and skips their updates.

A step is invalid if its loss or gradient is not finite, if its gradient norm exceeds
`skip_above_gradient_norm`, or if it has no target token with a weight above 0. An
invalid step changes neither the weights nor the optimizer's slots and step count. The
`AfterStep` callback decides whether training continues.

Under float16, a non-finite gradient usually means that the loss scale is too high. The
optimizer then skips the update and lowers the loss scale, but the step counts as valid.
"""

import keras
from keras import ops

from keras_transformer.training.replicas import global_mean, global_sum, num_replicas
from keras_transformer.training.step_ops import apply_if

OK, NO_TOKENS, LOSS, GRADIENT, EXPLOSION = range(5)
NONFINITE = (LOSS, GRADIENT)
FAULT_REASONS = {
    NO_TOKENS: "no target token with a weight above 0",
    LOSS: "the loss is not finite",
    GRADIENT: "the gradient is not finite",
    EXPLOSION: "the gradient's norm exceeds skip_above_gradient_norm",
}
# Below this loss scale, a non-finite gradient is a fault, not an overflow of float16.
# The value is the same as in fairseq.
MIN_LOSS_SCALE = 1e-4


def apply_checked(optimizer, gradients, variables, loss_sum, tokens, options):
    """Applies the gradients of a valid step, after clipping, and returns the fault.

    The fault is an int32 scalar, `OK` or a key of `FAULT_REASONS`. `gradients` and
    `loss_sum` are those of this replica, and `tokens` is the total weight of the target
    tokens in the global batch. With a `LossScaleOptimizer`, the gradients are
    multiplied by the loss scale. Of the `StepOptions`, `global_clipnorm` and
    `skip_above_gradient_norm` are used. If they are `None`, norms have no limit.
    """
    is_scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    loss_scale = None
    if is_scaled:
        loss_scale = ops.convert_to_tensor(
            optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale
        )
    # If any component is non-finite, so is the sum, which costs half as much as a norm.
    total = sum(ops.cast(ops.sum(gradient), "float32") for gradient in gradients)
    gradients, is_too_large = _limit_norm(gradients, loss_scale, options)
    fault = _find_fault(tokens, loss_sum, total, loss_scale, is_too_large)
    is_applied = ops.equal(fault, OK)
    if is_scaled:
        # A NaN in a gradient makes the optimizer skip the update and lower the loss
        # scale. Keras checks only the first replica's gradients. So after an overflow
        # on any replica, all replicas get a NaN. Other faults leave the loss scale
        # unchanged.
        overflows = global_sum(ops.cast(~ops.isfinite(total), "float32")) > 0
        first = gradients[0] + ops.where(overflows, float("nan"), 0.0)
        gradients = [first, *gradients[1:]]
        is_applied |= overflows
    apply_if(is_applied, optimizer, gradients, variables)
    return fault


def _limit_norm(gradients, loss_scale, options):
    """Clips the gradients if `global_clipnorm` is set.

    Also returns whether their norm before clipping exceeds `skip_above_gradient_norm`.
    """
    clipnorm, max_norm = options.global_clipnorm, options.skip_above_gradient_norm
    if clipnorm is None and max_norm is None:
        return gradients, False
    # The limits apply to the norm of the sum over the replicas. Each replica then
    # applies the mean, because the optimizer adds the replicas' gradients.
    gradients = [global_mean(gradient) for gradient in gradients]
    # In 16 bits, the sum of squares would overflow or lose small gradients.
    squares = (ops.square(ops.cast(gradient, "float32")) for gradient in gradients)
    norm = ops.sqrt(sum(map(ops.sum, squares))) * num_replicas()
    if loss_scale is not None:
        norm /= loss_scale
    is_too_large = False
    if max_norm is not None:
        # Whether a non-finite norm is a fault depends on the loss scale.
        is_too_large = ops.isfinite(norm) & (norm > max_norm)
    if clipnorm is not None:
        factor = ops.minimum(1.0, clipnorm / ops.maximum(norm, 1e-12))
        gradients = [each * ops.cast(factor, each.dtype) for each in gradients]
    return gradients, is_too_large


def _find_fault(tokens, loss_sum, gradient_sum, loss_scale, is_too_large):
    """Returns the fault of a step, the same on all replicas."""
    is_nonfinite = [~ops.isfinite(each) for each in (loss_sum, gradient_sum)]
    # One all-reduce adds both flags. A fault on any replica makes the whole step
    # invalid.
    counts = global_sum(ops.cast(ops.stack(is_nonfinite), "float32"))
    is_loss_nonfinite, is_gradient_nonfinite = ops.unstack(counts > 0)
    if loss_scale is not None:
        is_gradient_nonfinite &= loss_scale < MIN_LOSS_SCALE
    # JAX would compile the step anew for a weakly typed result.
    fault = ops.where(is_too_large, EXPLOSION, ops.array(OK, "int32"))
    fault = ops.where(is_gradient_nonfinite, GRADIENT, fault)
    fault = ops.where(is_loss_nonfinite, LOSS, fault)
    return ops.where(tokens > 0, fault, NO_TOKENS)
