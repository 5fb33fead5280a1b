"""A check of SentencePiece model files, made before C++ code reads them."""

import math

from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.errors import DataError

MAX_BYTES = 64 << 20
MAX_PIECE_LENGTH = 1_000


def check_sentencepiece_model(content: bytes) -> None:
    """Refuse a model that `train_byte_pairs` cannot have written.

    The library trusts what it reads in a model's tables: one for normalising text,
    which ours have not, is followed beyond its end.

    Args:
        content: of the model file.

    Raises:
        DataError: too large, no model, without byte fallback, a piece that is empty,
            double, too long or no text, a score that is no number, or a table.
    """
    if len(content) > MAX_BYTES:
        raise DataError(f"has more than the {MAX_BYTES:,} bytes allowed.")
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
        raise DataError("the SentencePiece model normalises text by a table.")
    if len(set(pieces)) < len(pieces):
        raise DataError("the SentencePiece model has a piece twice.")
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
