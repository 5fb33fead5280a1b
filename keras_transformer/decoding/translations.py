"""What a Translator gives for a line, and its making out of pieces of the line."""

from typing import NamedTuple


class Translation(NamedTuple):
    """A translation and its score, `log-probability / penalty(length)`."""

    text: str
    score: float


def join_pieces(pieces):
    """Ranked translations of a line out of those of its pieces."""
    if len(pieces) == 1:
        return pieces[0]
    joined = []
    for rank in range(max(map(len, pieces))):
        parts = [ranked[min(rank, len(ranked) - 1)] for ranked in pieces]
        joined.append(
            Translation(
                " ".join(part.text for part in parts if part.text),
                sum(part.score for part in parts),
            )
        )
    return joined
