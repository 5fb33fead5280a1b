"""TensorFlow's thread pools, GPU memory, and automatic mixed precision on CPUs."""

import contextlib
import os

import tensorflow as tf
from tensorflow.python.eager import context

from keras_transformer.machine import find_cores

_OPTION = "auto_mixed_precision_onednn_bfloat16"


def configure_threads(parallel_parts, cores=None):
    """Divides the cores among the parts of a batch that are computed in parallel.

    The operations of a small model are too short to benefit from several threads. On
    two cores, two parts with one thread each finish sooner than one part with two
    threads.

    Call this function before TensorFlow's first operation, which fixes the thread
    pools. Nothing changes if there is only one part, or if the environment variable
    TF_NUM_INTRAOP_THREADS or TF_NUM_INTEROP_THREADS is set.

    Args:
        parallel_parts: Number of parts that are computed in parallel.
        cores: Number of cores to use. If `None`, all cores that the process may use, at
            most a container's quota.

    Returns:
        Whether the thread pools suit `parallel_parts`. With several parts, the result
        is false if the environment sets the pools, or if TensorFlow has already fixed
        them.

    Examples:
        >>> suits = kt.training.configure_threads(parallel_parts=2)
        >>> transformer = kt.Transformer.from_size("tiny", vocabulary_size=1000)
        >>> model = kt.training.TrainingModel(transformer, parallel_parts=2)
    """
    if parallel_parts == 1:
        return True
    if {"TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"} & set(os.environ):
        return False
    try:
        tf.config.threading.set_inter_op_parallelism_threads(parallel_parts)
        tf.config.threading.set_intra_op_parallelism_threads(
            max(1, (cores or find_cores()) // parallel_parts)
        )
    except RuntimeError:
        return False
    return True


def fix_order_of_sums():
    """Makes repeated runs on a CPU identical, bit for bit.

    In a graph that needs more than about 200 MB, TensorFlow's memory optimizer replaces
    a sum of three or more tensors, such as the gradients of shared embeddings, by
    additions in the order in which the tensors happen to be ready. TensorFlow has no
    public option that turns it off.
    """
    config = tf.compat.v1.ConfigProto()
    if context.context()._config is not None:
        config.CopyFrom(context.context()._config)
    options = config.graph_options.rewrite_options
    options.memory_optimization = options.NO_MEM_OPT
    context.context()._config = config
    # Without new options, this call applies the changed configuration.
    tf.config.optimizer.set_experimental_options({})


def allocate_gpu_memory_on_demand():
    """Makes TensorFlow allocate GPU memory as needed, instead of nearly all at once.

    The rest is then free for other processes. Call this function before TensorFlow's
    first operation, which fixes the setting. The environment variable
    TF_FORCE_GPU_ALLOW_GROWTH overrides it.
    """
    for gpu in tf.config.list_physical_devices("GPU"):
        # TensorFlow raises one of these errors if its first operation has run, or if
        # the program has split the GPU into logical devices.
        with contextlib.suppress(RuntimeError, ValueError):
            tf.config.experimental.set_memory_growth(gpu, True)


@contextlib.contextmanager
def automatic_bfloat16(enabled=True):
    """Returns a context in which TensorFlow multiplies matrices in bfloat16.

    The context affects each `tf.function` whose first call is inside it.

    Keras's `mixed_bfloat16` computes everything in bfloat16. On a CPU, that slows down
    other operations by more than it speeds up matrix products. Here TensorFlow's graph
    optimizer casts only the products, and operations between them that it considers
    safe. Weights and optimizer slots stay float32. The context has no effect on GPUs,
    or on CPUs without AVX-512 BF16 or AMX.

    Args:
        enabled: If false, the context changes nothing.

    Examples:
        >>> transformer = kt.Transformer.from_size("tiny", vocabulary_size=1000)
        >>> model = kt.training.TrainingModel(transformer)
        >>> model.compile(kt.training.FusedAdam(1e-3))
        >>> with kt.training.automatic_bfloat16():  # batches of training_dataset
        ...     history = model.fit(batches, steps_per_epoch=1000)
        ...
    """
    before = tf.config.optimizer.get_experimental_options().get(_OPTION, False)
    tf.config.optimizer.set_experimental_options({_OPTION: enabled or before})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({_OPTION: before})
