"""Lists of consecutive items of an iterable, and uniform samples of its items."""

import math
from collections import Counter

from keras_transformer.pipelines.chunks import chunks, reservoir_sample


def test_chunks_contain_all_items_in_order():
    assert list(chunks(iter(range(8)), 3)) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert list(chunks(range(6), 3)) == [[0, 1, 2], [3, 4, 5]]
    assert list(chunks([], 3)) == []


def test_reservoir_sample_is_uniform_and_returns_short_inputs_whole():
    assert reservoir_sample(iter(range(7)), 7) == list(range(7))
    counts = Counter(
        item
        for seed in range(3000)
        for item in reservoir_sample(iter(range(11)), 4, seed)
    )
    # Each of 11 items is drawn with probability 4/11, about 1,091 times. The tolerance
    # is 5 standard deviations.
    deviation = math.sqrt(3000 * 4 / 11 * 7 / 11)
    assert all(abs(counts[item] - 12000 / 11) < 5 * deviation for item in range(11))
    assert len(set(reservoir_sample(iter(range(1000)), 50, seed=3))) == 50
