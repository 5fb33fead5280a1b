"""Patches Keras's `fit` for `MultiWorkerMirroredStrategy`.

Keras's TensorFlow trainer fails in two places when several processes train (Keras issue
20585):

- Before the first step, it reduces a batch over the replicas to determine its shapes.
  This fails if replicas belong to other processes. The patch reads the shapes from a
  local replica's part of the batch, since all parts have the same shapes.
- It averages each step's logs with `axis=0`, which a scalar does not have.

TensorFlow detects lost processes by heartbeats. Only private functions can set their
timeout. This module therefore imports private names of TensorFlow as well as of Keras.
"""

import tensorflow as tf
from keras.src import tree
from keras.src.backend.tensorflow import trainer
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.eager import context

_PATCHED = "_keras_transformer_patched"


def patch_fit():
    """Makes `fit` work with several workers. With one process, nothing changes."""
    if getattr(trainer, _PATCHED, False):
        return
    reduce_per_replica = trainer.reduce_per_replica
    symbolic_build = trainer.TensorFlowTrainer._maybe_symbolic_build

    def reduce_scalars_too(values, strategy, reduction):
        if not _has_several_workers(strategy) or reduction not in ("auto", "mean"):
            return reduce_per_replica(values, strategy, reduction)

        def reduce(value):
            local = strategy.experimental_local_results(value)[0]
            axis = None if local.shape.rank == 0 else 0
            return strategy.reduce("MEAN", value, axis=axis)

        return tree.map_structure(reduce, values)

    def build_from_local_part(self, iterator=None, data_batch=None):
        strategy = self._distribute_strategy
        if iterator is not None and strategy and _has_several_workers(strategy):
            # Keras's epoch iterator yields (first step, last step, batches).
            for _, _, batches in iterator:
                data_batch = tree.map_structure(
                    lambda value: strategy.experimental_local_results(value)[0],
                    next(batches),
                )
                break
            iterator = None
        symbolic_build(self, iterator=iterator, data_batch=data_batch)

    trainer.reduce_per_replica = reduce_scalars_too
    trainer.TensorFlowTrainer._maybe_symbolic_build = build_from_local_part
    setattr(trainer, _PATCHED, True)


def watch_workers(jobs, timeout_seconds, start_seconds):
    """Makes TensorFlow detect lost workers. To be called before creating the strategy.

    `jobs` has the number of tasks by job name, with the chief's job first. After
    `timeout_seconds` without a heartbeat, collective operations on the others raise an
    error. A worker waits `start_seconds` for the chief.
    """
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{next(iter(jobs))}/replica:0/task:0",
        cluster_register_timeout_in_ms=round(1000 * start_seconds),
        heartbeat_timeout_in_ms=round(1000 * timeout_seconds),
        # A lost worker must not delay the shutdown of the others.
        shutdown_barrier_timeout_in_ms=round(1000 * timeout_seconds),
        coordinated_jobs=[
            coordination_config_pb2.CoordinatedJob(name=name, num_tasks=count)
            for name, count in jobs.items()
        ],
    )


def _has_several_workers(strategy):
    return (
        isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        and strategy.cluster_resolver is not None
        and len(tf.nest.flatten(strategy.cluster_resolver.cluster_spec().as_dict())) > 1
    )
