"""Several sources of sentence pairs as one, with weights and tags."""

import functools
import itertools
from collections.abc import Sequence

import numpy as np

from keras_transformer.pipelines.sources.base import Pairs, as_pairs


class MixedPairs(Pairs):
    """Several sources of pairs as one, read one after another.

    Args:
        sources: List of `Pairs` that yield texts, not ids.
        weights: For each source, how often an epoch contains each of its pairs, such as
            0.5. If `None`, once.
        tags: For each source, a word that is put in front of its source texts, such as
            `>>fra<<`, or `None`. If `None`, there are no tags.
        names: For each source, its name in logs.

    Examples:
        >>> sources = [("a dog", "ein Hund")], [("a cat", "eine Katze")]
        >>> list(kt.pipelines.MixedPairs(sources, tags=[None, ">>pet<<"]))
        [('a dog', 'ein Hund'), ('>>pet<< a cat', 'eine Katze')]
    """

    def __init__(
        self,
        sources: Sequence[Pairs],
        weights: Sequence[float] | None = None,
        tags: Sequence[str | None] | None = None,
        names: Sequence[str] | None = None,
    ):
        self._sources = list(map(as_pairs, sources))
        self._weights = weights
        self._tags = tags or [None] * len(self._sources)
        self.names = names or [str(number + 1) for number in range(len(self._tags))]

    def __iter__(self):
        for pairs, tag in zip(self._sources, self._tags, strict=True):
            for source, target in pairs:
                # A blank source is dropped, also if it would have a tag.
                if tag and source and source.strip():
                    source = f"{tag} {source}"
                yield source, target

    @property
    def untagged(self) -> "MixedPairs":
        """The same pairs without tags."""
        return MixedPairs(self._sources)

    @functools.cached_property
    def ends(self) -> list[int]:
        """The number of each source's last pair, from 1. `encode_corpus` stores it."""
        counts = (pairs.num_pairs() for pairs in self._sources)
        counts = (
            sum(1 for _ in pairs) if count is None else count
            for pairs, count in zip(self._sources, counts, strict=True)
        )
        return list(itertools.accumulate(counts))

    def num_pairs(self):
        is_known = None not in [pairs.num_pairs() for pairs in self._sources]
        return self.ends[-1] if is_known else None

    def parts(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the index of the source of each pair, by its number from 1."""
        return np.searchsorted(self.ends, numbers)

    def locate(self, number, is_target=False):
        part = int(self.parts(number))
        before = self.ends[part - 1] if part else 0
        return self._sources[part].locate(number - before, is_target)

    def fingerprint(self):
        found = [each.fingerprint() for each in self._sources]
        if None in found:
            return None
        return " + ".join(
            f"{tag} {each}" for tag, each in zip(self._tags, found, strict=True)
        )

    def weights(self, numbers):
        if self._weights is None or {*self._weights} == {1.0}:
            return None
        return np.asarray(self._weights, float)[self.parts(numbers)]

    def sentences(self):
        return (text for pair in self.untagged for text in pair)

    def alignments(self):
        found = [each.alignments() for each in self._sources]
        if found == [None] * len(found):
            return None
        return self._alignments(found)

    def _alignments(self, found):
        for pairs, links_of, tag in zip(self._sources, found, self._tags, strict=True):
            if links_of is None:
                yield from ([] for _ in pairs)
            else:  # a tag is the first word of its source
                yield from ([(s + bool(tag), t) for s, t in each] for each in links_of)

    def symbols(self):
        return list(dict.fromkeys(filter(None, self._tags)))
