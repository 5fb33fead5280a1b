"""Checks SentencePiece model files before SentencePiece's C++ code reads them.

A model may have a normalization table. The table is a double-array trie (Darts) over
byte strings, followed by their replacements. The trie is an array of 32-bit units. Each
node has a base, and its child for a byte is the unit at the base XOR the byte.
SentencePiece follows the trie without checking its bounds, so a forged table can make
it read memory outside the table.
"""

import math
import struct
from collections import Counter
from collections.abc import Sequence

import numpy as np
from google.protobuf.message import DecodeError
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from keras_transformer.errors import DataError

Piece = ModelProto.SentencePiece
# Subword vocabularies write a space as this character.
SPACE_MARK = "\u2581"
MAX_MODEL_BYTES = 64 << 20
MAX_PIECE_LENGTH = 1_000
MAX_CHARSMAP_BYTES = 2 << 20
# SentencePiece's buffer holds this many matches per position. If there are more, the
# library reads past the end of the buffer.
_MAX_MATCHES = 32
# Limits the time of the check. The entries of SentencePiece's tables have at most 12.
_MAX_MATCH_BYTES = 256


def sentencepiece_pieces(content: bytes) -> list[str]:
    """Checks a model (see `check_sentencepiece_model`), and returns its pieces."""
    return [piece.piece for piece in check_sentencepiece_model(content).pieces]


def spelled_bytes(piece: ModelProto.SentencePiece) -> bytes:
    """Returns the bytes that a piece adds to a text, none for a special piece."""
    if piece.type == piece.BYTE:
        return bytes([int(piece.piece[3:5], 16)])
    if piece.type in (piece.CONTROL, piece.UNKNOWN):
        return b""
    return piece.piece.replace(SPACE_MARK, " ").encode()


def pieces_by_type(model: ModelProto) -> dict[int, dict[str, int]]:
    """Returns for each type, such as `Piece.NORMAL`, its pieces with their ids."""
    found = {kind: {} for kind in Piece.Type.values()}
    for number, piece in enumerate(model.pieces):
        found[piece.type][piece.piece] = number
    return found


def byte_ids(pieces: dict[int, dict[str, int]]) -> list[int]:
    """Returns the ids of the 256 bytes, given the result of `pieces_by_type`."""
    return [pieces[Piece.BYTE][f"<0x{byte:02X}>"] for byte in range(256)]


def piece_ids(pieces: Sequence[str | None]) -> dict[str, int]:
    """Returns the id of each piece, all of which must differ. `None` is no piece."""
    numbers = {piece: n for n, piece in enumerate(pieces) if piece is not None}
    for number, piece in enumerate(pieces):
        if numbers.get(piece, number) != number:
            raise DataError(
                f"each subword must occur once. Received: {piece!r:.80} twice"
            )
    return numbers


def check_sentencepiece_model(content: bytes, lossless: bool = False) -> ModelProto:
    """Parses a model. Rejects those that let SentencePiece leave its buffers.

    A `lossless` model has byte fallback and no normalization table, like the models
    that this package trains.
    """
    if len(content) > MAX_MODEL_BYTES:
        raise DataError(f"the file exceeds the limit of {MAX_MODEL_BYTES:,} bytes")
    try:
        model = ModelProto.FromString(content)
        pieces = [piece.piece for piece in model.pieces]
        tables = [
            model.normalizer_spec.precompiled_charsmap,
            model.denormalizer_spec.precompiled_charsmap,
        ]
    except (DecodeError, ValueError):
        raise DataError("not a SentencePiece model") from None
    if not pieces:
        raise DataError("not a SentencePiece model")
    if lossless and not model.trainer_spec.byte_fallback:
        raise DataError(
            "the SentencePiece model must have byte fallback. Train it with "
            "--byte_fallback=true"
        )
    if lossless and any(tables):
        raise DataError(
            "the SentencePiece model must not have a normalization table. Train it "
            "with --normalization_rule_name=identity"
        )
    for table in filter(None, tables):
        check_charsmap(table)
    if len(set(pieces)) < len(pieces):
        ((twice, _),) = Counter(pieces).most_common(1)
        raise DataError(
            "each subword of the SentencePiece model must occur once. Received: "
            f"{twice!r:.80} twice"
        )
    for number, piece in enumerate(model.pieces):
        label = f"subword {number} of the SentencePiece model"
        # For invalid UTF-8, protobuf returns `bytes` instead of `str`.
        if not isinstance(piece.piece, str):
            raise DataError(f"{label} is not valid UTF-8")
        if not 0 < len(piece.piece) <= MAX_PIECE_LENGTH:
            raise DataError(
                f"{label} must have 1 to {MAX_PIECE_LENGTH:,} characters. "
                f"Received: {len(piece.piece):,} characters"
            )
        # SentencePiece fails on a text that contains a one-character control symbol.
        if piece.type == piece.CONTROL and len(piece.piece) == 1:
            raise DataError(
                f"{label} is a one-character control symbol. Control symbols must have "
                "at least two characters, because a text may contain any character"
            )
        if not math.isfinite(piece.score):
            raise DataError(
                f"{label} must have a finite score. Received: {piece.score}"
            )
    return model


def check_charsmap(table: bytes) -> None:
    """Rejects a `precompiled_charsmap` beyond whose end SentencePiece could read."""
    if len(table) > MAX_CHARSMAP_BYTES:
        raise DataError(
            "the normalization table of the SentencePiece model exceeds the limit of "
            f"{MAX_CHARSMAP_BYTES:,} bytes"
        )
    size = struct.unpack_from("<I", table)[0] if len(table) >= 4 else 0
    # The library allocates blocks of 256 units.
    if size == 0 or size % 1024 or 4 + size >= len(table):
        raise _damaged("the size in its header does not match its length")
    units = np.frombuffer(table, "<u4", size // 4, offset=4).astype(np.int64)
    texts = table[4 + size :]
    if texts[-1] != 0:
        raise _damaged("its last replacement is not null-terminated")
    _check_trie(units, len(texts))


def _check_trie(units, num_text_bytes):
    """Checks all nodes of a trie, whether or not a byte string leads to them.

    The bits of a node: 0 to 7 are the byte that leads to it, 8 is set if a match ends
    there, 9 multiplies the offset in the bits from 10 on by 256. Bit 31 is set in units
    that hold the position of a replacement in the other bits.
    """
    places = np.arange(len(units))
    nodes = np.flatnonzero((units < 1 << 31) | (places == 0))
    bases = nodes ^ ((units[nodes] >> 10) << ((units[nodes] & 512) >> 6))
    # The 256 steps from a base stay in its block.
    if (bases >= len(units)).any():
        raise _damaged("a step of its trie leaves the table")
    is_match = (units[nodes] & 256) >> 8
    if (units[bases[is_match == 1]] & 0x7FFFFFFF >= num_text_bytes).any():
        raise _damaged("a replacement is outside the table")
    parents = nodes ^ (units[nodes] & 255)
    # The largest number of matches on a path to each base, one more byte per round.
    matches = np.zeros(len(units), int)
    for _ in range(_MAX_MATCH_BYTES):
        before = matches.copy()
        np.maximum.at(matches, bases, before[parents] + is_match)
        if matches.max() > _MAX_MATCHES:
            raise _damaged(
                f"more than {_MAX_MATCHES} entries could match at one position of a "
                "text"
            )
        if (matches == before).all():
            return
    raise _damaged(f"an entry has more than {_MAX_MATCH_BYTES} bytes")


def _damaged(reason):
    return DataError(
        f"the normalization table of the SentencePiece model is damaged: {reason}"
    )
