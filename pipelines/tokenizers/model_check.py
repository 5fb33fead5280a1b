"""Checks SentencePiece model files before C++ code reads them."""

import math

from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.errors import DataError

MAX_MODEL_BYTES = 64 << 20
MAX_PIECE_LENGTH = 1_000


def check_sentencepiece_model(content: bytes) -> None:
    """Rejects models that `train_byte_pairs` cannot have written.

    The library trusts the tables in a model and reads beyond the end of a damaged
    normalization table. Models of this package have no such table.

    Args:
        content: Content of the model file.

    Raises:
        DataError: If the content is too large, is not a model, or lacks byte fallback.
            If it has a normalization table. If a piece is empty, repeated, too long or
            not text, or if a score is not finite.
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
    if not model.trainer_spec.byte_fallback:
        raise DataError("the SentencePiece model must have byte fallback.")
    if any(tables):
        raise DataError("the SentencePiece model must not have a normalization table.")
    if len(set(pieces)) < len(pieces):
        raise DataError("the SentencePiece model contains a piece twice.")
    for number, piece in enumerate(model.pieces):
        if not 0 < len(piece.piece) <= MAX_PIECE_LENGTH:
            raise DataError(
                f"the SentencePiece model's piece {number} has {len(piece.piece):,} "
                f"characters; 1 to {MAX_PIECE_LENGTH:,} are allowed."
            )
        if not math.isfinite(piece.score):
            raise DataError(
                f"the SentencePiece model's piece {number} has the score {piece.score}."
            )
