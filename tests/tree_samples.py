"""Random trees for tests."""

import random

from keras_transformer.parsing.trees import Tree

LABELS = ["S", "NP", "VP", "PP", "ADVP", "PRT", "TOP", "WHNP"]
TAGS = ["NN", "VB", "DT", "-LRB-", "PRP$", ",", ".", "``", "''", ":"]


def random_tree(seed, num_words=None):
    """Returns a tree of random shape, which may have unary chains."""
    draw = random.Random(seed)
    num_words = num_words or draw.randint(1, 30)
    words = tuple(
        draw.choice(["a", "b", "-LRB-", "É", "x_y"]) for _ in range(num_words)
    )
    tags = tuple(draw.choice(TAGS) for _ in words)
    # `waiting` is a stack of spans to divide, in depth-first order.
    constituents, waiting = [], [(0, num_words)]
    while waiting:
        start, end = waiting.pop()
        if end - start == 1 and draw.random() < 0.7 and num_words > 1:
            continue  # a word without its own constituent
        for _ in range(draw.choice([1, 1, 1, 2, 3])):
            constituents.append((draw.choice(LABELS), start, end))
        if end - start > 1:
            size = draw.randint(1, min(3, end - start - 1))
            cuts = sorted(draw.sample(range(start + 1, end), size))
            children = list(zip([start, *cuts], [*cuts, end], strict=True))
            waiting += reversed(children)
    return Tree(words, tags, tuple(constituents))
