"""Text files and synthetic pairs of data_diversification.py."""

from keras_transformer.errors import UserError
from keras_transformer.files import replace_file

ORIGINAL = "original"


def diversified_pairs(sources, targets, forward, backward=()):
    """Returns the original and the synthetic pairs, without duplicates.

    Args:
        sources: List of the training sources.
        targets: List of the training targets.
        forward: Mapping of names to translations of `sources`, one list per model.
        backward: The same for translations of `targets`; by default, there are none.

    Returns:
        Mapping of (source, target) to the name of its first origin: "original", then
        the models in order. Synthetic pairs with an empty translation are omitted.

    Raises:
        UserError: If the number of translations differs from the number of texts.
    """
    found = {}
    origins = [(ORIGINAL, sources, targets)]
    origins += [(name, sources, texts) for name, texts in forward.items()]
    origins += [(name, texts, targets) for name, texts in dict(backward).items()]
    for name, left, right in origins:
        if len(left) != len(right):
            raise UserError(
                f"{name}: must have one translation per line. Received: "
                f"{len(left)} sources, {len(right)} targets"
            )
        for pair in zip(left, right, strict=True):
            if all(pair):
                found.setdefault(pair, name)
    return found


def one_line(text):
    """Replaces line breaks with spaces, because they would misalign the two sides."""
    return " ".join(text.splitlines())


def read_lines(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def write(path, text):
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
