"""The KV cache of a beam, compared with plain lists.

At each position, every hypothesis of a sentence appends a slot, a key and a value, to
an array that all hypotheses of the sentence share. The class `Hypotheses` also lists
the slots in the past of each hypothesis, which are the ones it must attend to.
"""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras import ops
from layer_checks import numpy

from keras_transformer.decoding import cache as kv_cache

BATCH, BEAM, STEPS, HEADS = 2, 3, 9, 2
KEY_DIM, VALUE_DIM = 5, 4
ATTENTION = SimpleNamespace(
    num_heads=HEADS, key_dim=KEY_DIM, value_dim=VALUE_DIM, compute_dtype="float32"
)
# Capacities in positions. With `None`, the cache grows, which JAX does not allow: it
# requires static shapes.
CAPACITIES = (None, STEPS, 12) if keras.backend.backend() != "jax" else (STEPS, 12)
needs_growing_cache = pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="The cache cannot grow on this backend."
)


class Hypotheses:
    """A cache of two layers, and the list of slots of each hypothesis.

    Each slot has a key and a value that no other slot has.
    """

    def __init__(self, beam_size=BEAM, max_length=None, window=None):
        self.beam_size, self.window = beam_size, window
        self.generator = np.random.default_rng(3)
        self.cache = kv_cache.empty_cache(
            [ATTENTION] * 2, BATCH, beam_size, max_length, window
        )
        self.histories = [[[] for _ in range(beam_size)] for _ in range(BATCH)]

    def append(self, index):
        self.cache, place = kv_cache.extend(self.cache, index, self.window)
        shape = (BATCH, HEADS, self.beam_size)
        layers = []
        for number, layer in enumerate(self.cache.layers):
            key, value = (
                self.generator.normal(size=(*shape, dim)).astype("float32")
                for dim in (KEY_DIM, VALUE_DIM)
            )
            layers.append(layer.append(ops.array(key), ops.array(value), place))
            # The lists contain the slots of the second layer, which the tests check.
            if number == 1:
                for i, row in enumerate(self.histories):
                    for j, history in enumerate(row):
                        history.append((index, j, key[i, :, j], value[i, :, j]))
        self.cache = self.cache._replace(layers=tuple(layers))

    def reorder(self):
        parents = self.generator.integers(0, self.beam_size, (BATCH, self.beam_size))
        parents[0] = parents[0, 0]  # all hypotheses of the first sentence continue one
        self.histories = [
            [list(row[parent]) for parent in each]
            for row, each in zip(self.histories, parents, strict=True)
        ]
        rows = parents + np.arange(BATCH)[:, None] * self.beam_size
        rows = ops.array(rows.reshape(-1).astype("int32"))
        self.cache = kv_cache.reorder(self.cache, rows)

    def compact(self):
        self.cache = kv_cache.compact(self.cache, self.window)

    def num_reachable(self):
        """Returns the largest number of distinct slots that one sentence uses."""
        return max(
            len({slot[:2] for history in row for slot in history})
            for row in self.histories
        )

    def assert_attends_to_histories(self):
        """Checks that biases let each hypothesis attend to exactly its own slots."""
        parts = self.cache.layers[1].parts()
        biases = self.cache.biases()
        for i, row in enumerate(self.histories):
            for j, history in enumerate(row):
                found = []
                for (key, value), bias in zip(parts, biases, strict=True):
                    key, value = numpy(key)[i], numpy(value)[i]
                    seen = np.ones(key.shape[1], "bool")
                    if bias is not None:
                        assert set(np.unique(numpy(bias))) <= {0, np.float32(-1e30)}
                        seen = numpy(bias)[i, 0, j] == 0
                    found += zip(
                        np.swapaxes(key, 0, 1)[seen],
                        np.swapaxes(value, 0, 1)[seen],
                        strict=True,
                    )
                expected = [slot[2:] for slot in history]
                if self.window is not None:
                    expected = expected[-self.window :]
                assert len(found) == len(expected)
                # Attention does not depend on the order of slots.
                for one, other in zip(
                    sorted(found, key=lambda slot: slot[0][0, 0]),
                    sorted(expected, key=lambda slot: slot[0][0, 0]),
                    strict=True,
                ):
                    np.testing.assert_array_equal(one[0], other[0])
                    np.testing.assert_array_equal(one[1], other[1])


@pytest.mark.parametrize("beam_size", [1, BEAM])
@pytest.mark.parametrize("window", [None, 1, 4, 30])
@pytest.mark.parametrize("max_length", CAPACITIES)
def test_cache_attends_to_the_slots_of_each_hypothesis(max_length, window, beam_size):
    """After each step, the hypotheses of a sentence continue random ones of it.

    After every third step, `compact` drops slots that no hypothesis attends to.
    """
    hypotheses = Hypotheses(beam_size, max_length, window)
    for index in range(STEPS):
        hypotheses.append(index)
        hypotheses.assert_attends_to_histories()
        hypotheses.reorder()
        if index % 3 == 1:
            hypotheses.compact()


@pytest.mark.parametrize("window", [None, 4, 5, 30])
def test_buffer_grows_once_it_is_full(window):
    hypotheses = Hypotheses(max_length=4, window=window)
    for index in range(STEPS):
        hypotheses.append(index)
        hypotheses.assert_attends_to_histories()
        hypotheses.reorder()
        if index == 3:
            hypotheses.cache = kv_cache.grow(hypotheses.cache, window)


@needs_growing_cache
def test_compact_drops_slots_that_no_hypothesis_attends_to():
    hypotheses, dropped = Hypotheses(), 0
    for index in range(STEPS):
        hypotheses.append(index)
        hypotheses.reorder()
        if index % 3 == 1:
            hypotheses.compact()
            hypotheses.assert_attends_to_histories()
            used = hypotheses.num_reachable()
            for layer in hypotheses.cache.layers:
                sizes = [each.shape[2] for each in layer]
                # Keys and values of the main part, and of the recent part.
                assert sizes == [used, used, 0, 0]
            assert hypotheses.cache.ancestors.shape == (BATCH, BEAM, used)
            dropped += used < BEAM * (index + 1)
    # After each of the steps 1, 4, and 7.
    assert dropped == 3


@pytest.mark.parametrize(
    ("window", "num_positions"), [(None, 12), (1, 1), (4, 4), (12, 12), (30, 12)]
)
def test_buffer_capacity_is_limited_by_the_window(window, num_positions):
    cache = kv_cache.empty_cache([ATTENTION], BATCH, BEAM, 12, window)
    shape, num_slots = (BATCH, HEADS), num_positions * BEAM
    assert tuple(cache.layers[0].key.shape) == (*shape, KEY_DIM, num_slots)
    assert tuple(cache.layers[0].value.shape) == (*shape, num_slots, VALUE_DIM)
    assert cache.beam_size == BEAM and cache.is_buffer


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="traces a graph")
@pytest.mark.parametrize("window", [None, 4])
def test_buffer_shapes_match_for_tensor_lengths(window):
    import tensorflow as tf

    @tf.function(autograph=False)
    def sizes(length):
        cache = kv_cache.empty_cache([ATTENTION], BATCH, BEAM, length, window)
        return [tf.shape(each) for each in tf.nest.flatten(cache)]

    for length in (3, 4, 9):
        cache = kv_cache.empty_cache([ATTENTION], BATCH, BEAM, length, window)
        expected = [tuple(each.shape) for each in tf.nest.flatten(cache)]
        found = [tuple(each.numpy()) for each in sizes(tf.constant(length))]
        assert found == expected
