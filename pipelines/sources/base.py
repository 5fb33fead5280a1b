"""Base class of sources of sentence pairs, and pairs in both directions."""

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

# Text is read without TensorFlow, whose import takes seconds.
if TYPE_CHECKING:
    import tensorflow as tf

    from keras_transformer.pipelines.tokenizers.base import Tokenizer

Pair = tuple[str | None, str | None]
Path = str | os.PathLike


class Pairs:
    """A source of sentence pairs that can be iterated more than once.

    Iteration yields `(source, target)`. A side whose text cannot be decoded is `None`.
    Subclasses define `__iter__` (or `id_chunks`, if the pairs are already ids) and
    override the methods whose defaults do not suit them. `as_pairs` wraps lists of
    pairs.

    Examples:
        >>> class Phrases(kt.pipelines.Pairs):
        ...     def __iter__(self):
        ...         yield "a dog", "ein Hund"
        ...         yield "a cat", "eine Katze"
        ...
        >>> pairs = Phrases()
        >>> list(pairs.sentences())
        ['a dog', 'ein Hund', 'a cat', 'eine Katze']
        >>> pairs.locate(2)
        'pair 2'
    """

    def __iter__(self) -> Iterator[Pair]:
        raise NotImplementedError(f"{type(self).__name__} yields no texts.")

    def locate(self, number: int, is_target: bool = False) -> str:
        """Returns the location of pair `number`, from 1, such as `file:line`.

        If `is_target`, it is that of the pair's target, if it has its own.
        """
        return f"pair {number}"

    def num_pairs(self) -> int | None:
        """Returns the number of pairs, or `None` if all would have to be read."""
        return None

    def fingerprint(self) -> str | None:
        """Returns a string that changes with the pairs.

        While the fingerprint is unchanged, `encode_corpus` reuses its stored ids.
        `None`, the default, means that the source cannot detect changes.
        """
        return None

    def weights(self, numbers: np.ndarray) -> np.ndarray | None:
        """Returns how often each pair occurs per epoch. Values can be fractional.

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

    def alignments(self) -> "Iterator[list[tuple[int, int]]] | None":
        """Returns an iterator over the word alignments of the pairs, or `None`.

        It yields the links of each pair: indices of a source and a target word, counted
        from 0. Words are separated by white space.

        Raises:
            DataError: If there is not one alignment per pair.
        """
        return None

    def tokenizer(self) -> "Tokenizer | None":
        """Returns the tokenizer of encoded pairs, or `None` if the pairs are text."""
        return None

    def id_chunks(
        self, tokenizer: "Tokenizer"
    ) -> "Iterator[list[tf.RaggedTensor]] | None":
        """Returns an iterator over encoded pairs, or `None` if the pairs are text.

        It yields chunks of pairs `[source_ids, target_ids]`, both int32 RaggedTensors
        `[pairs, (length)]` without start and end ids, which `tokenizer` produced.
        """
        return None


class BothDirections(Pairs):
    """Source that follows each pair by the same pair with its sides swapped.

    Args:
        pairs: A `Pairs` that yields texts, not ids.

    Examples:
        >>> pairs = kt.pipelines.as_pairs([("a dog", "ein Hund")])
        >>> list(kt.pipelines.BothDirections(pairs))
        [('a dog', 'ein Hund'), ('ein Hund', 'a dog')]
    """

    def __init__(self, pairs: Pairs):
        self._pairs = pairs

    def __iter__(self):
        for source, target in self._pairs:
            yield source, target
            yield target, source

    @property
    def ends(self):
        """The `ends` of `MixedPairs`, or `None`."""
        ends = getattr(self._pairs, "ends", None)
        return ends and [2 * end for end in ends]

    @ends.setter
    def ends(self, ends):
        self._pairs.ends = [end // 2 for end in ends]

    def locate(self, number, is_target=False):
        is_swapped = number % 2 == 0
        return self._pairs.locate((number + 1) // 2, is_target != is_swapped)

    def num_pairs(self):
        count = self._pairs.num_pairs()
        return None if count is None else 2 * count

    def fingerprint(self):
        fingerprint = self._pairs.fingerprint()
        return fingerprint and f"{fingerprint}, both directions"

    def weights(self, numbers):
        return self._pairs.weights((np.asarray(numbers) + 1) // 2)

    def sentences(self):
        return self._pairs.sentences()

    def symbols(self):
        return self._pairs.symbols()

    def alignments(self):
        found = self._pairs.alignments()
        return found and (
            each for links in found for each in (links, [(t, s) for s, t in links])
        )


class _IterablePairs(Pairs):
    def __init__(self, pairs: Iterable[Pair]):
        self._pairs = pairs

    def __iter__(self):
        return iter(self._pairs)


def as_pairs(pairs: Pairs | Iterable[Pair]) -> Pairs:
    """Wraps an iterable as `Pairs`. A `Pairs` is returned unchanged.

    A wrapped iterator, unlike a list, can be read only once.

    Returns:
        `Pairs`.

    Examples:
        >>> pairs = kt.pipelines.as_pairs([("a dog", "ein Hund")])
        >>> list(pairs.sentences())
        ['a dog', 'ein Hund']
    """
    return pairs if isinstance(pairs, Pairs) else _IterablePairs(pairs)


def as_paths(paths: Path | Sequence[Path]) -> list[str]:
    """Converts a path or a sequence of paths to a list of str."""
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    return [os.fspath(path) for path in paths]


def locate_in_files(number: int, files: Iterable[tuple[str, Sequence[int]]]) -> str:
    """Returns the location of pair `number`, counted from 1, as `file:line`.

    `files` has each file's path and the line numbers of its pairs.
    """
    rest = number
    for path, lines in files:
        if rest <= len(lines):
            return f"{path}:{lines[rest - 1]}"
        rest -= len(lines)
    raise IndexError(f"There is no pair {number}.")
