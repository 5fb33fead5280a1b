"""Cut long streams into lists and draw samples from them."""

import itertools
import random
from collections.abc import Iterable
from collections.abc import Iterator
from typing import TypeVar

Item = TypeVar("Item")


def blocks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield the items in lists of `size`; the last may be shorter."""
    items = iter(items)
    while block := list(itertools.islice(items, size)):
        yield block


def sample(items: Iterable[Item], size: int, seed: int = 0) -> list[Item]:
    """Draw at most `size` items, each with the same chance, in one pass.

    All items in their order if there are no more than `size`.
    """
    items = iter(items)
    drawn = list(itertools.islice(items, size))
    generator = random.Random(seed)
    for seen, item in enumerate(items, start=len(drawn) + 1):
        place = generator.randrange(seen)
        if place < size:
            drawn[place] = item
    return drawn
