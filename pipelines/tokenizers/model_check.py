"""Checks SentencePiece model files before SentencePiece's C++ code reads them."""

import math
import re

from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.errors import DataError
from keras_transformer.pipelines.tokenizers.charsmap import check_charsmap

MAX_MODEL_BYTES = 64 << 20
MAX_PIECE_LENGTH = 1_000


def sentencepiece_pieces(content: bytes) -> list[str]:
    """Checks a model (see `check_sentencepiece_model`), and returns its pieces."""
    check_sentencepiece_model(content)
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(content)
    return [piece.piece for piece in model.pieces]


def byte_pieces(content: bytes) -> dict[str, bytes]:
    """Returns a mapping from byte pieces, such as `<0x41>`, to the bytes they encode.

    The mapping is empty for models without byte fallback. The model must have passed
    `check_sentencepiece_model`.
    """
    model = sentencepiece_model_pb2.ModelProto.FromString(content)
    names = [piece.piece for piece in model.pieces if piece.type == piece.BYTE]
    matches = [re.fullmatch("<0x([0-9A-F]{2})>", name) for name in names]
    return {match[0]: bytes.fromhex(match[1]) for match in filter(None, matches)}


def check_sentencepiece_model(content: bytes, lossless: bool = False) -> None:
    """Rejects models that make SentencePiece read or write outside its buffers.

    SentencePiece trusts the tables in a model and reads beyond the end of a damaged
    normalization table (see `check_charsmap`).

    Args:
        content: Content of the model file.
        lossless: Whether the model must have byte fallback and no normalization table,
            like the models that this package trains.

    Raises:
        DataError: If the content is too large, is not a model, has a damaged
            normalization table, or does not meet the conditions of `lossless`. Also if
            a piece is empty, too long, repeated, not valid UTF-8, or a one-character
            control symbol, or if its score is not finite.
    """
    if len(content) > MAX_MODEL_BYTES:
        raise DataError(f"the file exceeds the limit of {MAX_MODEL_BYTES:,} bytes.")
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
