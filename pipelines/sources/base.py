"""Base class of sources of sentence pairs."""

import itertools
from collections.abc import Iterable
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from keras_transformer.pipelines.tokenizers.base import Tokenizer

Pair = tuple[str | None, str | None]


class Pairs:
    """A source of sentence pairs that can be iterated more than once.

    Iterating yields `(source, target)`. A side whose text cannot be read is `None`.
    A subclass defines `__iter__` and overrides the methods for which it has a better
    answer than the default. `as_pairs` wraps lists of pairs.
    """

    def __iter__(self) -> Iterator[Pair]:
        raise NotImplementedError(f"{type(self).__name__} yields no texts.")

    def locate(self, number: int) -> str:
        """Returns the place of a pair for messages, such as `file:line`.

        Args:
            number: The pair's position in the source, counted from 1.
        """
        return f"pair {number}"

    def fingerprint(self) -> str | None:
        """Returns a string that changes with the pairs.

        It lets `encode_corpus` reuse ids that it wrote before. `None`, the default,
        means that the source cannot detect changes.
        """
        return None

    def weights(self, numbers: np.ndarray) -> np.ndarray | None:
        """Returns how many times an epoch of training contains each pair.

        Args:
            numbers: int array of the pairs' positions, counted from 1.

        Returns:
            Float array shaped like `numbers`, or `None` if every weight is 1.
        """
        return None

    def sentences(self) -> Iterator[str | None]:
        """Yields the texts from which a shared vocabulary is learned."""
        return itertools.chain.from_iterable(self)

    def symbols(self) -> list[str]:
        """Returns words that need an id of their own in the vocabulary."""
        return []

    def tokenizer(self) -> Tokenizer | None:
        """Returns the tokenizer of pairs that are already ids, `None` for texts."""
        return None

    def id_chunks(self, tokenizer: Tokenizer) -> Iterator[list[tf.RaggedTensor]] | None:
        """Returns an iterator over pairs that are already ids, `None` for texts.

        Args:
            tokenizer: The tokenizer that the ids must belong to.

        Returns:
            Iterator over `[source_ids, target_ids]`, each a RaggedTensor int32
            `[chunk, (length)]` without start and end ids.
        """
        return None


class _IterablePairs(Pairs):
    def __init__(self, pairs: Iterable[Pair]):
        self._pairs = pairs

    def __iter__(self):
        return iter(self._pairs)


def as_pairs(pairs: Pairs | Iterable[Pair]) -> Pairs:
    """Returns `pairs` itself if it is a `Pairs`, else wraps the iterable."""
    return pairs if isinstance(pairs, Pairs) else _IterablePairs(pairs)
