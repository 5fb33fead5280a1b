"""Sums and strategies over replicas, on TensorFlow; one replica elsewhere."""

import keras


def global_sum(value):
    """The sum of `value` over all replicas, inside a step; `value` outside of one."""
    context = _replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return value
    return context.all_reduce("SUM", value)


def global_mean(value):
    """The mean of `value` over all replicas."""
    return global_sum(value) / num_replicas()


def num_replicas():
    """How many replicas compute the step that this is called in."""
    context = _replica_context()
    return 1 if context is None else context.num_replicas_in_sync


def default_strategy():
    """`MirroredStrategy` where there are several GPUs, else the default strategy."""
    import tensorflow as tf

    if len(tf.config.list_physical_devices("GPU")) > 1:
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()


def _replica_context():
    if keras.config.backend() != "tensorflow":
        return None
    import tensorflow as tf

    return tf.distribute.get_replica_context()
