"""Adapter for the tokenizers of KerasHub (published as keras-hub and keras-nlp)."""

import hashlib
import json
import os
import tempfile

import numpy as np
import tensorflow as tf
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from keras_transformer.errors import DataError
from keras_transformer.pipelines.lines import content_hash
from keras_transformer.pipelines.tokenizers.base import (
    SPECIAL_PIECES,
    Tokenizer,
    well_formed,
)
from keras_transformer.pipelines.tokenizers.model_check import spelled_bytes


class KerasHubTokenizer(Tokenizer):
    """Adapts a `keras_hub.tokenizers.Tokenizer` to the interface of this package.

    KerasHub's tokenizers have other special ids, or lack some of them. The adapter
    renumbers the vocabulary: 0 is padding, 1 unknown, 2 start and 3 end, and all other
    ids follow in order. If four different special ids are given, the size of the
    vocabulary does not change.

    The wrapped tokenizer determines whether text survives a round trip. WordPiece, for
    example, does not store spaces. A model is saved without it: save it with its
    `save_to_preset`, and wrap it again after loading.

        hub = keras_hub.tokenizers.SentencePieceTokenizer(proto="spm.model")
        tokenizer = KerasHubTokenizer(hub, unknown_id=0, start_id=1, end_id=2)
        translator = Translator(model, tokenizer)

    Args:
        tokenizer: The tokenizer to wrap, such as a
            `keras_hub.tokenizers.SentencePieceTokenizer`, or that of a preset.
        pad_id: Padding id in `tokenizer`, or `None` if it has none.
        unknown_id: Unknown id in `tokenizer`, or `None` if it has none.
        start_id: Start id in `tokenizer`, or `None` if it has none.
        end_id: End id in `tokenizer`, or `None` if it has none.

    Raises:
        ValueError: If `tokenizer` returns strings or rows of a fixed length, or if a
            special id is outside its vocabulary.
    """

    kind = "keras_hub"

    def __init__(
        self, tokenizer, pad_id=None, unknown_id=None, start_id=None, end_id=None
    ):
        super().__init__()
        length = getattr(tokenizer, "sequence_length", None)
        if "int" not in tokenizer.compute_dtype or length is not None:
            raise ValueError(
                "`tokenizer` must return ids in rows of variable length. Received: "
                f"dtype={tokenizer.compute_dtype}, sequence_length={length}."
            )
        size = tokenizer.vocabulary_size()
        special_ids = pad_id, unknown_id, start_id, end_id
        given = {each for each in special_ids if each is not None}
        if not given <= set(range(size)):
            raise ValueError(
                "Special ids must be in the vocabulary. Received: "
                f"ids {sorted(given)}, vocabulary size {size}."
            )
        self._hub = tokenizer
        self._special_ids = special_ids
        ordinary = np.array([each for each in range(size) if each not in given], int)
        first = len(special_ids)
        self.vocabulary_size = first + len(ordinary)
        # Tables between the two numberings. Ids without a counterpart map to -1.
        self._from_hub = np.full(size, -1, np.int32)
        self._from_hub[ordinary] = np.arange(first, self.vocabulary_size)
        self._to_hub = np.array([-1] * first + [*ordinary], np.int32)
        if unknown_id is not None:
            self._from_hub[unknown_id] = self.unknown_id
            self._to_hub[self.unknown_id] = unknown_id

    def tokenize(self, strings):
        strings = tf.convert_to_tensor(strings, tf.string)
        # KerasHub raises an error for invalid UTF-8, so invalid bytes are replaced.
        strings = tf.strings.unicode_transcode(strings, "UTF-8", "UTF-8")
        ids = self._hub.tokenize(strings)
        # Eager calls of KerasHub return lists.
        if not isinstance(ids, tf.RaggedTensor):
            ids = tf.ragged.constant(ids, tf.int32, ragged_rank=1)
        return _renumber(ids, self._from_hub)

    def join(self, ids):
        if tf.executing_eagerly() and not ids.nrows():
            return tf.zeros([0], tf.string)
        texts = self._hub.detokenize(_renumber(ids, self._to_hub))
        return well_formed(texts)

    def pieces(self) -> list[str]:
        special = [
            piece if number is None else self._hub.id_to_token(number)
            for piece, number in zip(SPECIAL_PIECES, self._special_ids, strict=True)
        ]
        ordinary = self._to_hub[len(special) :].tolist()
        return [*special, *map(self._hub.id_to_token, ordinary)]

    def piece_bytes(self) -> list[bytes]:
        # The import takes seconds, so it waits until it is needed.
        from keras_hub import tokenizers

        if isinstance(self._hub, tokenizers.SentencePieceTokenizer):
            proto = ModelProto.FromString(self._hub.proto)
            spell = {piece.piece: spelled_bytes(piece) for piece in proto.pieces}.get
        elif isinstance(self._hub, tokenizers.BytePairTokenizer):
            spell = _byte_level_speller()
        elif isinstance(self._hub, tokenizers.WordPieceTokenizer):
            spell = _word_piece_speller(self._hub.suffix_indicator)
        else:
            raise DataError(
                "the bytes of the subwords are known for SentencePiece, byte-pair and "
                f"WordPiece tokenizers only. Received: {type(self._hub).__name__}"
            )
        first = len(SPECIAL_PIECES)
        return [b""] * first + [spell(piece) for piece in self.pieces()[first:]]

    def save(self, folder: str | os.PathLike) -> None:
        """Raises a `DataError`, because `load_tokenizer` cannot load the result."""
        raise DataError(
            "a KerasHub tokenizer cannot be saved with a model. Save it with its "
            "`save_to_preset` method, and wrap it again after loading"
        )

    def fingerprint(self) -> str:
        config = self._hub.get_config()
        config.pop("name", None)
        fields = [type(self._hub).__name__, config, self._special_ids]
        digest = hashlib.sha256(
            json.dumps(fields, sort_keys=True, default=str).encode()
        )
        with tempfile.TemporaryDirectory() as folder:
            if self._hub.file_assets:
                self._hub.save_assets(folder)
            for name in sorted(os.listdir(folder)):
                digest.update(bytes.fromhex(content_hash(os.path.join(folder, name))))
        return digest.hexdigest()


def _renumber(ids: tf.RaggedTensor, table: np.ndarray) -> tf.RaggedTensor:
    """Replaces ids by their entries in `table` and removes ids without an entry."""
    flat_ids = tf.cast(ids.flat_values, tf.int32)
    in_range = (flat_ids >= 0) & (flat_ids < len(table))
    found = tf.gather(table, tf.where(in_range, flat_ids, 0))
    found = ids.with_flat_values(tf.where(in_range, found, -1))
    return tf.ragged.boolean_mask(found, found.with_flat_values(found.flat_values >= 0))


def _byte_level_speller():
    # GPT-2's alphabet: printable Latin-1 characters stand for their own bytes, and
    # characters from U+0100 on for the other bytes, in order.
    printable = (*range(33, 127), *range(161, 173), *range(174, 256))
    bytes_of = {chr(byte): byte for byte in printable}
    others = sorted(set(range(256)) - set(printable))
    bytes_of |= {chr(256 + number): byte for number, byte in enumerate(others)}
    return lambda piece: bytes(bytes_of[each] for each in piece if each in bytes_of)


def _word_piece_speller(suffix: str):
    def spell(piece):
        is_suffix = len(piece) > len(suffix) and piece.startswith(suffix)
        return (piece.removeprefix(suffix) if is_suffix else f" {piece}").encode()

    return spell
