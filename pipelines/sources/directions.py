"""Sentence pairs in both directions."""

import numpy as np

from keras_transformer.pipelines.sources.base import Pairs


class BothDirections(Pairs):
    """Yields each pair, followed by the same pair with source and target swapped.

    Args:
        pairs: A `Pairs` that yields texts, not ids.
    """

    def __init__(self, pairs):
        self._pairs = pairs

    def __iter__(self):
        for source, target in self._pairs:
            yield source, target
            yield target, source

    def locate(self, number):
        return self._pairs.locate((number + 1) // 2)

    def fingerprint(self):
        fingerprint = self._pairs.fingerprint()
        return fingerprint and f"{fingerprint}, both directions"

    def weights(self, numbers):
        return self._pairs.weights((np.asarray(numbers) + 1) // 2)

    def sentences(self):
        return self._pairs.sentences()

    def symbols(self):
        return self._pairs.symbols()
