"""Seed generators without state of their own."""

import sys

import keras


def per_replica(seed_generator):
    """Returns a seed generator that draws other seeds on each replica.

    All replicas have the same state of a `SeedGenerator`, so they would draw the same
    seeds from it. Outside of `tf.distribute`, the generator itself is returned.
    """
    if keras.config.backend() != "tensorflow":
        return seed_generator
    context = sys.modules["tensorflow"].distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return seed_generator
    return _ShiftedSeeds(seed_generator, context.replica_id_in_sync_group)


class _ShiftedSeeds(keras.random.SeedGenerator):
    """View of a `SeedGenerator` that adds `shift` to its seeds, without own state."""

    def __init__(self, seed_generator, shift):
        self._seed_generator = seed_generator
        self._shift = shift

    def next(self, ordered=True):
        seed = self._seed_generator.next(ordered)
        shift = keras.ops.cast(self._shift, seed.dtype)
        return seed + keras.ops.stack([shift, keras.ops.zeros_like(shift)])


class FixedSeed(keras.random.SeedGenerator):
    """Seed generator whose only seed is given, int32 `[2]`, such as an input."""

    def __init__(self, seed):
        self._seed = seed

    def next(self, ordered=True):
        is_jax = keras.config.backend() == "jax"
        return keras.ops.cast(self._seed, "uint32" if is_jax else "int32")
