"""Functions for the replicas of `tf.distribute`, and for a single process.

Backends other than TensorFlow have one replica.
"""

import contextlib

import keras


def global_sum(value):
    """Returns the sum of `value` over all replicas, or `value` if there is only one."""
    context = _replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return value
    return context.all_reduce("SUM", value)


def global_mean(value):
    """Returns the mean of `value` over all replicas."""
    return global_sum(value) / num_replicas()


def num_replicas():
    """Returns the number of replicas that compute the current step."""
    context = _replica_context()
    return 1 if context is None else context.num_replicas_in_sync


def replica_index():
    """Returns the number of this replica, from 0: an int or an int32 scalar."""
    context = _replica_context()
    return 0 if context is None else context.replica_id_in_sync_group


def default_strategy():
    """Returns `MirroredStrategy` on several GPUs, else the default strategy.

    Examples:
        >>> strategy = kt.training.default_strategy()
        >>> strategy.num_replicas_in_sync  # more than 1 on several GPUs
        1
    """
    import tensorflow as tf

    if len(tf.config.list_physical_devices("GPU")) > 1:
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()


class SingleProcess:
    """The `Workers` of a single process, which trains on one device."""

    is_chief = True
    index, count = 0, 1
    num_replicas = 1

    def all_reduce_sum(self, values):
        """Returns `values` as a list, since there is nothing to add."""
        return list(values)

    def broadcast_from_chief(self, function):
        """Calls `function` and returns its result."""
        return function()

    def scope(self):
        """Returns a context in which to build the model."""
        return contextlib.nullcontext()

    def distribute(self, dataset):
        """Returns the dataset to pass to `fit`."""
        return dataset


@contextlib.contextmanager
def jax_devices():
    """Yields the `Workers` of a JAX process, which trains on all of its devices.

    Inside the context, each device computes some rows of every batch
    (`keras.distribution.DataParallel`).
    """
    workers, scope = SingleProcess(), contextlib.nullcontext()
    workers.num_replicas = len(keras.distribution.list_devices())
    if workers.num_replicas > 1:
        scope = keras.distribution.DataParallel().scope()
    with scope:
        yield workers


def _replica_context():
    if keras.config.backend() != "tensorflow":
        return None
    import tensorflow as tf

    return tf.distribute.get_replica_context()
