import math
from collections import Counter

from keras_transformer.pipelines.chunks import blocks
from keras_transformer.pipelines.chunks import sample


def test_blocks_hold_everything_in_order():
    assert list(blocks(iter(range(8)), 3)) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert list(blocks(range(6), 3)) == [[0, 1, 2], [3, 4, 5]]
    assert list(blocks([], 3)) == []


def test_sample_is_uniform_and_keeps_small_texts():
    assert sample(iter(range(7)), 7) == list(range(7))
    counts = Counter(
        item for seed in range(3000) for item in sample(iter(range(11)), 4, seed)
    )
    # Each of 11 is drawn with chance 4/11: 1,091 times, give or take 5 deviations.
    deviation = math.sqrt(3000 * 4 / 11 * 7 / 11)
    assert all(abs(counts[item] - 12000 / 11) < 5 * deviation for item in range(11))
    assert len(set(sample(iter(range(1000)), 50, seed=3))) == 50
