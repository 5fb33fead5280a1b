"""bfloat16 on CPUs, where TensorFlow's own graph optimiser sees fit."""

import contextlib

import tensorflow as tf

_OPTION = "auto_mixed_precision_onednn_bfloat16"


@contextlib.contextmanager
def automatic_bfloat16(wanted=True):
    """Functions first called within compute their matrix products in bfloat16.

    Keras's `mixed_bfloat16` computes everything in bfloat16, which costs a CPU more
    than its products save. Here the graph optimiser casts the products and what it
    finds safe between them, for CPUs with AVX512-BF16 or AMX; on others, and on GPUs,
    nothing changes. Weights and the optimizer's slots stay in float32.

    Args:
        wanted: False changes nothing, for a setting that may be off.
    """
    before = tf.config.optimizer.get_experimental_options().get(_OPTION, False)
    tf.config.optimizer.set_experimental_options({_OPTION: wanted or before})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({_OPTION: before})
