"""Checks the normalization table of a SentencePiece model.

The table is a double-array trie (Darts) over byte strings, followed by their
replacements. The trie is an array of 32-bit units. Each node has a base, and its
child for a byte is the unit at the base XOR the byte. SentencePiece follows the trie
without checking its bounds, so a forged table can make it read memory outside the
table.
"""

import struct

import numpy as np

from keras_transformer.errors import DataError

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


def check_charsmap(table: bytes) -> None:
    """Rejects tables that could make SentencePiece read beyond their end.

    Args:
        table: `precompiled_charsmap` of a SentencePiece model.

    Raises:
        DataError: If a step of the trie leaves the table, a replacement is not
            null-terminated, or more than 32 entries could match at one position of a
            text.
    """
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

    Args:
        units: uint32 array, the trie.
        bases: int array `[chunk]`.
        counts: int array `[chunk]`, the number of matches on the path to each base.
        num_text_bytes: Total size of the replacements, in bytes.

    Returns:
        bases: The bases of all children.
        counts: The number of matches on the path to each of them.
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
