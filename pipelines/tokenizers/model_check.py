"""Checks SentencePiece model files before SentencePiece's C++ code reads them.

A model may have a normalization table. The table is a double-array trie (Darts) over
byte strings, followed by their replacements. The trie is an array of 32-bit units. Each
node has a base, and its child for a byte is the unit at the base XOR the byte.
SentencePiece follows the trie without checking its bounds, so a forged table can make
it read memory outside the table.
"""

import math
import struct

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
# Bits of a unit. `_LEAF` is set if a match ends at the unit's node, and `_LABEL` is the
# byte that leads to this node. In units that hold the value of a match, `_VALUE` is the
# position of its replacement. Their bit 31 is set, so that they match no byte.
_LEAF, _LABEL, _VALUE = 1 << 8, 0x800000FF, 0x7FFFFFFF


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


def check_sentencepiece_model(content: bytes, lossless: bool = False) -> ModelProto:
    """Parses a model. Rejects those that let SentencePiece leave its buffers.

    A `lossless` model has byte fallback and no normalization table, like the models
    that this package trains.
    """
    if len(content) > MAX_MODEL_BYTES:
        raise DataError(f"the file exceeds the limit of {MAX_MODEL_BYTES:,} bytes.")
    try:
        model = ModelProto.FromString(content)
        pieces = [piece.piece for piece in model.pieces]
        tables = [
            model.normalizer_spec.precompiled_charsmap,
            model.denormalizer_spec.precompiled_charsmap,
        ]
    except (DecodeError, ValueError):
        raise DataError("not a SentencePiece model.") from None
    if not pieces:
        raise DataError("not a SentencePiece model.")
    if lossless and not model.trainer_spec.byte_fallback:
        raise DataError("the SentencePiece model must have byte fallback.")
    if lossless and any(tables):
        raise DataError("the SentencePiece model must not have a normalization table.")
    for table in filter(None, tables):
        check_charsmap(table)
    if len(set(pieces)) < len(pieces):
        raise DataError("the SentencePiece model contains a piece twice.")
    for number, piece in enumerate(model.pieces):
        label = f"piece {number} of the SentencePiece model"
        # For invalid UTF-8, protobuf returns `bytes` instead of `str`.
        if not isinstance(piece.piece, str):
            raise DataError(f"{label} is not valid UTF-8.")
        if not 0 < len(piece.piece) <= MAX_PIECE_LENGTH:
            raise DataError(
                f"{label} must have 1 to {MAX_PIECE_LENGTH:,} characters. "
                f"Received: {len(piece.piece):,} characters."
            )
        # SentencePiece fails on a text that contains a one-character control symbol.
        if piece.type == piece.CONTROL and len(piece.piece) == 1:
            raise DataError(
                f"{label} is a one-character control symbol. Control symbols must have "
                "at least two characters, because a text may contain any character."
            )
        if not math.isfinite(piece.score):
            raise DataError(
                f"{label} must have a finite score. Received: {piece.score}."
            )
    return model


def check_charsmap(table: bytes) -> None:
    """Rejects a `precompiled_charsmap` with which SentencePiece could leave it."""
    if len(table) > MAX_CHARSMAP_BYTES:
        raise DataError(
            "the normalization table of the SentencePiece model exceeds the limit of "
            f"{MAX_CHARSMAP_BYTES:,} bytes."
        )
    size = struct.unpack_from("<I", table)[0] if len(table) >= 4 else 0
    if size == 0 or size % 4 or 4 + size >= len(table):
        raise _damaged("the size in its header does not match its length")
    units = np.frombuffer(table, "<u4", size // 4, offset=4).astype(np.int64)
    texts = table[4 + size :]
    if texts[-1] != 0:
        raise _damaged("its last replacement is not null-terminated")
    _check_trie(units, len(texts))


def _check_trie(units, num_text_bytes):
    """Follows every path of the trie from its first unit, one byte per round."""
    places = np.arange(len(units))
    # A unit's offset is in the bits from 10 on. Bit 9 multiplies it by 256.
    bases = places ^ ((units >> 10) << ((units & 512) >> 6))
    # A unit is the child of the base that its label leads back to. All 256 steps from a
    # base stay in its block of 256, so units of an incomplete block are no children.
    labels = units & _LABEL
    children = np.flatnonzero((labels < 256) & ((places | 255) < len(units)))
    parents, has_match = children ^ labels[children], (units[children] & _LEAF) != 0
    # The largest number of matches on a path to each base, or -1 if there is no path.
    matches = np.full(len(units), -1)
    found, counts, is_match = bases[:1], np.zeros(1, int), np.zeros(1, bool)
    for _ in range(_MAX_MATCH_BYTES + 1):
        if ((found | 255) >= len(units)).any():
            raise _damaged("a step of its trie leaves the table")
        if (units[found[is_match]] & _VALUE >= num_text_bytes).any():
            raise _damaged("a replacement is outside the table")
        before = matches.copy()
        np.maximum.at(matches, found, counts)
        if matches.max() > _MAX_MATCHES:
            raise _damaged(
                f"more than {_MAX_MATCHES} entries could match at one position of a "
                "text"
            )
        if (matches == before).all():
            return
        reached = matches[parents] >= 0
        found, is_match = bases[children[reached]], has_match[reached]
        counts = matches[parents[reached]] + is_match
    raise _damaged(f"an entry has more than {_MAX_MATCH_BYTES} bytes")


def _damaged(reason):
    return DataError(
        f"the normalization table of the SentencePiece model is damaged: {reason}."
    )
