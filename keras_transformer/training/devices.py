"""TensorFlow's threads, shared out between the parts of a batch."""

import contextlib
import os

import tensorflow as tf


def use_threads(parallel_parts):
    """Gives each part of a batch that is computed side by side its share of the cores.

    One operation of a small model is too short for several threads: on two cores, two
    parts with one thread each end sooner than one part with two. Nothing is changed
    for one part, where the variables TF_NUM_INTRAOP_THREADS or TF_NUM_INTEROP_THREADS
    say otherwise, or where TensorFlow has begun to compute, which fixes its threads.

    Args:
        parallel_parts: of `TrainingModel`.

    Returns:
        Whether the threads are as they should be.
    """
    if parallel_parts == 1:
        return True
    if {"TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"} & set(os.environ):
        return False
    try:
        tf.config.threading.set_inter_op_parallelism_threads(parallel_parts)
        tf.config.threading.set_intra_op_parallelism_threads(
            max(1, _cores() // parallel_parts)
        )
    except RuntimeError:
        return False
    return True


def _cores():
    """Cores that this process may use, where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
