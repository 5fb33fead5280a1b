"""Splitting texts that are too long for the model, where it hurts least."""

import re
from typing import NamedTuple

# After a sentence's end, brackets and quotation marks that close with it included;
# ideographic full stops need no space after them.
_SENTENCE_END = re.compile(r"[.!?…][\"'”’»)\]]*\s+|[。！？][”’」』）]*\s*")
_SPACE = re.compile(r"\s+")


def split_text(text, max_length, lengths):
    """Pieces of `text` that are short enough, in order.

    A text that is too long is halved: after a sentence's end near the middle, else at
    white space, else between two characters, until every piece fits.

    Args:
        text: str.
        max_length: int, the largest length of a piece.
        lengths: function from a list of str to the list of their lengths.

    Returns:
        List of str without white space around them, none of them blank. A single
        character is never split, even if it is too long.
    """
    pieces = [text]
    while True:
        too_long = [
            length > max_length and len(piece) > 1
            for piece, length in zip(pieces, lengths(pieces), strict=True)
        ]
        if not any(too_long):
            return pieces
        halved = [
            part.strip()
            for piece, is_too_long in zip(pieces, too_long, strict=True)
            for part in (_halves(piece) if is_too_long else (piece,))
        ]
        pieces = [piece for piece in halved if piece]


def _halves(text):
    middle = len(text) // 2
    for pattern, margin in (
        (_SENTENCE_END, len(text) // 4),
        (_SPACE, len(text) // 4),
        (_SPACE, 1),
    ):
        cuts = [
            match.end()
            for match in pattern.finditer(text)
            if margin <= match.end() <= len(text) - margin and match.end() < len(text)
        ]
        if cuts:
            middle = min(cuts, key=lambda cut: abs(cut - len(text) // 2))
            break
    return text[:middle], text[middle:]


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
