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

# Subword vocabularies write a space as this character.
SPACE_MARK = "\u2581"
MAX_MODEL_BYTES = 64 << 20
MAX_PIECE_LENGTH = 1_000
MAX_CHARSMAP_BYTES = 2 << 20
# SentencePiece's buffer holds this many matches per position. If there are more, the
# library reads past the end of the buffer.
_MAX_MATCHES = 32
# Number of bases to follow at once, each with all 256 bytes.
_CHUNK = 1 << 12
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


def check_sentencepiece_model(content: bytes, lossless: bool = False) -> ModelProto:
    """Parses a model. Rejects those that let SentencePiece leave its buffers.

    Args:
        content: Content of the model file.
        lossless: Whether the model must have byte fallback and no normalization table,
            like the models that this package trains.
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
    units = np.frombuffer(table, "<u4", size // 4, offset=4)
    texts = table[4 + size :]
    if texts[-1] != 0:
        raise _damaged("its last replacement is not null-terminated")
    _follow(units, len(texts))


def _follow(units, num_text_bytes):
    """Follows every path of the trie from its first unit."""
    # The largest number of matches on a path to each base, or -1 before the first
    # visit. Paths may meet, and a base is visited again only with more matches.
    matches = np.full(len(units), -1, np.int32)
    bases = _next_bases(np.zeros(1, np.int64), units[:1])
    counts = np.zeros(1, np.int32)
    waiting = [(bases, counts)]
    while waiting:
        bases, counts = waiting.pop()
        _check_bases(bases, len(units))
        is_better = counts > matches[bases]
        np.maximum.at(matches, bases, counts)
        bases = np.unique(bases[is_better])
        for start in range(0, len(bases), _CHUNK):
            chunk = bases[start : start + _CHUNK]
            found = _step(units, chunk, matches[chunk], num_text_bytes)
            if len(found[0]):
                waiting.append(found)


def _step(units, bases, counts, num_text_bytes):
    """Follows all 256 bytes from each base.

    `counts` has the number of matches on the path to each base, int `[chunk]` as
    `bases`. Returns the bases of all children, and their counts.
    """
    labels = np.arange(256, dtype=np.int64)
    indices = bases[:, None] ^ labels
    row, column = np.nonzero((units[indices] & _LABEL) == labels)
    indices = indices[row, column]
    hits = units[indices]
    bases, counts = _next_bases(indices, hits), counts[row]
    is_leaf = (hits & _LEAF) != 0
    leaves = bases[is_leaf]
    _check_bases(leaves, len(units))
    if (units[leaves] & _VALUE >= num_text_bytes).any():
        raise _damaged("a replacement is outside the table")
    counts = counts + is_leaf
    if (counts > _MAX_MATCHES).any():
        raise _damaged(
            f"more than {_MAX_MATCHES} entries could match at one position of a text"
        )
    return bases, counts.astype(np.int32)


def _next_bases(indices, units):
    """Returns the bases of the nodes whose `units` are at `indices`."""
    units = units.astype(np.int64)
    # A unit's offset is in the bits from 10 on. Bit 9 multiplies it by 256.
    return indices ^ ((units >> 10) << ((units & 512) >> 6))


def _check_bases(bases, size):
    # All 256 steps from a base stay in its block of 256.
    if ((bases | 255) >= size).any():
        raise _damaged("a step of its trie leaves the table")


def _damaged(reason):
    return DataError(
        f"the normalization table of the SentencePiece model is damaged: {reason}."
    )
