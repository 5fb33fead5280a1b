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

    Iteration yields `(source, target)`. A side whose text cannot be decoded is `None`.
    Subclasses define `__iter__` and override the methods whose defaults do not suit
    them. `as_pairs` wraps lists of pairs.
    """

    def __iter__(self) -> Iterator[Pair]:
        raise NotImplementedError(f"{type(self).__name__} yields no texts.")

    def locate(self, number: int) -> str:
        """Returns the location of a pair for messages, such as `file:line`.

        Args:
            number: Position of the pair in the source, counted from 1.
        """
        return f"pair {number}"

    def fingerprint(self) -> str | None:
        """Returns a string that changes with the pairs.

        If it is the same as before, `encode_corpus` reuses the ids that it wrote.
        `None`, the default, means that the source cannot detect changes.
        """
        return None

    def weights(self, numbers: np.ndarray) -> np.ndarray | None:
        """Returns the number of times that an epoch contains each pair.

        Args:
            numbers: int array of the pairs' positions, counted from 1.

        Returns:
            Float array shaped like `numbers`, or `None` if every weight is 1.
        """
        return None

    def sentences(self) -> Iterator[str | None]:
        """Yields the texts to learn a shared vocabulary from."""
        return itertools.chain.from_iterable(self)

    def symbols(self) -> list[str]:
        """Returns words that need their own ids in the vocabulary, none by default."""
        return []

    def tokenizer(self) -> Tokenizer | None:
        """Returns the tokenizer of pairs that are already ids, or `None` for texts."""
        return None

    def id_chunks(self, tokenizer: Tokenizer) -> Iterator[list[tf.RaggedTensor]] | None:
        """Returns an iterator over pairs that are already ids, or `None` for texts.

        Args:
            tokenizer: The tokenizer that must have produced the ids.

        Returns:
            Iterator over `[source_ids, target_ids]`, each a RaggedTensor int32
            `[chunk, (length)]` without start and end ids.
        """
        return None


# Methods that an iterable may have without being a `Pairs`.
_METHODS = [name for name in vars(Pairs) if not name.startswith("_")]


class _IterablePairs(Pairs):
    def __init__(self, pairs: Iterable[Pair]):
        self._pairs = pairs
        for name in _METHODS:
            # An attribute of the object, such as its tokenizer, is no such method.
            if callable(getattr(type(pairs), name, None)):
                setattr(self, name, getattr(pairs, name))

    def __iter__(self):
        return iter(self._pairs)


def as_pairs(pairs: Pairs | Iterable[Pair]) -> Pairs:
    """Wraps an iterable as `Pairs`. A `Pairs` is returned unchanged.

    If the iterable's class defines methods of `Pairs`, such as `fingerprint`, they
    replace the defaults. A wrapped iterator, unlike a list, can be read only once.
    """
    return pairs if isinstance(pairs, Pairs) else _IterablePairs(pairs)
