"""Checks SentencePiece model files before C++ code reads them."""

import math
import re

from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.errors import DataError
from keras_transformer.pipelines.tokenizers.charsmap import check_charsmap

MAX_MODEL_BYTES = 64 << 20
MAX_PIECE_LENGTH = 1_000


def sentencepiece_pieces(content: bytes) -> list[str]:
    """Checks a model, see `check_sentencepiece_model`, and returns its pieces."""
    check_sentencepiece_model(content)
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(content)
    return [piece.piece for piece in model.pieces]


def byte_pieces(content: bytes) -> dict[str, bytes]:
    """Returns the byte that each piece such as `<0x41>` of a checked model spells.

    It is empty for models without byte fallback.
    """
    model = sentencepiece_model_pb2.ModelProto.FromString(content)
    spelled = [piece.piece for piece in model.pieces if piece.type == piece.BYTE]
    matches = [re.fullmatch("<0x([0-9A-F]{2})>", piece) for piece in spelled]
    return {match[0]: bytes.fromhex(match[1]) for match in filter(None, matches)}


def check_sentencepiece_model(content: bytes, lossless: bool = False) -> None:
    """Rejects models that make the library read or write beyond its memory.

    The library trusts the tables in a model and reads beyond the end of a damaged
    normalization table, see `check_charsmap`.

    Args:
        content: Content of the model file.
        lossless: Whether the model must have byte fallback and no such table, like the
            models of this package.

    Raises:
        DataError: If the content is too large or is not a model. If its normalization
            table is damaged. If a piece is empty, repeated, too long, not text, or
            a control symbol of one character, or if a score is not finite. If the
            model is not `lossless` but must be.
    """
    if len(content) > MAX_MODEL_BYTES:
        raise DataError(
            f"the file has more than the {MAX_MODEL_BYTES:,} bytes allowed."
        )
    model = sentencepiece_model_pb2.ModelProto()
    try:
        model.ParseFromString(content)
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
        # protobuf returns bytes that are not UTF-8 as they are.
        if not isinstance(piece.piece, str):
            raise DataError(f"the SentencePiece model's piece {number} is not UTF-8.")
        if not 0 < len(piece.piece) <= MAX_PIECE_LENGTH:
            raise DataError(
                f"the SentencePiece model's piece {number} has {len(piece.piece):,} "
                f"characters; 1 to {MAX_PIECE_LENGTH:,} are allowed."
            )
        # The library fails on a text with this character.
        if piece.type == piece.CONTROL and len(piece.piece) == 1:
            raise DataError(
                f"the SentencePiece model's piece {number} is a control symbol of one "
                "character, which a text may contain."
            )
        if not math.isfinite(piece.score):
            raise DataError(
                f"the SentencePiece model's piece {number} has the score {piece.score}."
            )
