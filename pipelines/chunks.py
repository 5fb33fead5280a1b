"""Splits long streams into lists, and samples from streams."""

import itertools
import random
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yields the items in lists of `size`. The last list may be shorter."""
    items = iter(items)
    while chunk := list(itertools.islice(items, size)):
        yield chunk


def reservoir_sample(items: Iterable[Item], size: int, seed: int = 0) -> list[Item]:
    """Samples at most `size` items uniformly without replacement, in one pass.

    If there are at most `size` items, all are returned in order.
    """
    items = iter(items)
    drawn = list(itertools.islice(items, size))
    generator = random.Random(seed)
    for seen, item in enumerate(items, start=len(drawn) + 1):
        place = generator.randrange(seen)
        if place < size:
            drawn[place] = item
    return drawn
