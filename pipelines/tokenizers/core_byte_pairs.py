"""Byte-pair tokenizer for servers that have only TensorFlow's core operations."""

import numpy as np
import tensorflow as tf

from keras_transformer.errors import DataError
from keras_transformer.pipelines.tokenizers.base import lookup_table
from keras_transformer.pipelines.tokenizers.byte_pairs import (
    BytePairTokenizer,
    SentencePieceVocabulary,
    escape_tensor,
)
from keras_transformer.pipelines.tokenizers.model_check import (
    SPACE_MARK,
    Piece,
    byte_ids,
    pieces_by_type,
)

# Padding for shorter words, and the lookup result for missing keys. A character without
# an id is represented by -2 minus its code point.
_NO_ID = -1
_NO_RANK = 2**31 - 1
_USE_TEXT_OPS = "Export with `--tokenizer-ops tensorflow-text`."


class CoreOpsBytePairTokenizer(SentencePieceVocabulary):
    """BPE tokenizer of core TensorFlow operations, with the ids of the usual one.

    Use it for exports to servers that lack the package tensorflow-text.

    Pieces do not span spaces, so all words of a batch are merged in parallel. Each
    iteration applies the best merge of every word. Of equally good merges, the leftmost
    is applied, as in SentencePiece. The word with the most merges determines the number
    of iterations, so a text without spaces has quadratic cost.

    Invalid UTF-8 in a text becomes one U+FFFD per ill-formed sequence, whereas
    SentencePiece reads one U+FFFD per byte.

    Args:
        tokenizer: The `Tokenizer` to convert, of kind "bpe".

    Raises:
        DataError: If the model is not of type BPE, or has user-defined symbols, pieces
            that span spaces, or pieces with a character that is not itself a piece.

    Examples:
        >>> tokenizer = kt.open_model("phrases").tokenizer
        >>> core = kt.pipelines.CoreOpsBytePairTokenizer(tokenizer)
        >>> texts = ["12 euros"]
        >>> core.tokenize(texts).to_list() == tokenizer.tokenize(texts).to_list()
        True
    """

    def __init__(self, tokenizer: BytePairTokenizer):
        # If `tokenizer` were stored, an export would track its operations.
        super().__init__(tokenizer.model)
        self.text = tokenizer.text
        if not tokenizer.has_merges:
            raise DataError(
                "Core TensorFlow operations need a SentencePiece model of type BPE. "
                f"{_USE_TEXT_OPS}"
            )
        model = self._proto()
        pieces = pieces_by_type(model)
        if pieces[Piece.USER_DEFINED]:
            raise DataError(
                "the vocabulary has user-defined symbols such as "
                f"{min(pieces[Piece.USER_DEFINED])!r}. Core TensorFlow operations "
                f"cannot find them in a text. {_USE_TEXT_OPS}"
            )
        normal = pieces[Piece.NORMAL]
        # Maps `left * vocabulary_size + right` to the id of the merged piece.
        merges = {}
        for piece, number in normal.items():
            if SPACE_MARK in piece[1:]:
                raise DataError(
                    f"the subword {piece!r} has a space after its first character, but "
                    "core TensorFlow operations merge each word separately. "
                    f"{_USE_TEXT_OPS}"
                )
            for character in set(piece) - normal.keys():
                raise DataError(
                    f"the subword {piece!r} contains {character!r}, which is not a "
                    f"subword, so no merges lead to it. {_USE_TEXT_OPS}"
                )
            for index in range(1, len(piece)):
                left, right = normal.get(piece[:index]), normal.get(piece[index:])
                if left is not None and right is not None:
                    merges[left * self.vocabulary_size + right] = number
        characters = {
            ord(piece): number for piece, number in normal.items() if len(piece) == 1
        }
        # Merges are applied in the order of their scores, highest first.
        numbers = list(normal.values())
        scores = [-model.pieces[number].score for number in numbers]
        ranks = np.full(self.vocabulary_size, _NO_RANK)
        ranks[numbers] = np.unique(scores, return_inverse=True)[1]
        self._characters = lookup_table(characters, _NO_ID, tf.int64)
        self._merges = lookup_table(merges, _NO_ID, tf.int64)
        self._ranks = tf.constant(ranks, tf.int32)
        self._byte_ids = tf.constant(byte_ids(pieces), tf.int32)

    def tokenize(self, strings):
        # SentencePiece prepends a space to each nonempty text.
        strings = escape_tensor(self.normalized(strings))
        strings = tf.where(strings == "", strings, tf.strings.join([" ", strings]))
        codes = tf.strings.unicode_decode(strings, "UTF-8", errors="replace")
        rows, codes = codes.value_rowids(), codes.flat_values
        is_space = codes == ord(" ")
        codes = tf.where(is_space, ord(SPACE_MARK), codes)
        ids = self._characters.lookup(tf.cast(codes, tf.int64))
        ids = tf.where(ids < 0, -2 - codes, ids)
        # Every word begins with a space, so counting spaces numbers the words.
        words = tf.cumsum(tf.cast(is_space, tf.int32)) - 1
        num_words = tf.reduce_sum(tf.cast(is_space, tf.int32))
        word_rows = tf.boolean_mask(rows, is_space)
        words = tf.RaggedTensor.from_value_rowids(ids, words, num_words, validate=False)
        merged = self._merge(words.to_tensor(_NO_ID))
        kept = tf.where(merged != _NO_ID)
        return self._encode_bytes(
            tf.gather_nd(merged, kept),
            tf.gather(word_rows, kept[:, 0]),
            tf.size(strings, tf.int64),
        )

    def _merge(self, ids):
        """Merges the rows of int32 ids `[words, characters]` until no merge applies."""
        positions = tf.range(tf.shape(ids)[1])[None]

        def merge(ids, _):
            left, right = ids[:, :-1], ids[:, 1:]
            pair = tf.cast(left, tf.int64) * self.vocabulary_size
            pair += tf.cast(right, tf.int64)
            pair = tf.where((left >= 0) & (right >= 0), pair, -1)
            joined = self._merges.lookup(pair)
            ranks = tf.gather(self._ranks, tf.maximum(joined, 0))
            ranks = tf.where(joined < 0, _NO_RANK, ranks)
            # `argmin` returns the leftmost of equal ranks.
            best = tf.argmin(ranks, axis=1, output_type=tf.int32)[:, None]
            has_merge = tf.reduce_min(ranks, axis=1, keepdims=True) < _NO_RANK
            best = tf.where(has_merge, best, tf.shape(ids)[1])
            fill = tf.fill([tf.shape(ids)[0], 1], _NO_ID)
            after = tf.concat([right, fill], axis=1)
            joined = tf.concat([joined, fill], axis=1)
            after = tf.where(positions == best, joined, after)
            return tf.where(positions < best, ids, after), tf.reduce_any(has_merge)

        return tf.while_loop(
            lambda _, has_merge: has_merge,
            merge,
            (ids, tf.shape(ids)[1] > 1),
            shape_invariants=(tf.TensorShape([None, None]), tf.TensorShape([])),
        )[0]

    def _encode_bytes(self, ids, rows, num_rows):
        """Returns the ids of each text, with byte ids for characters without an id.

        `rows` is the index of each piece's text, int64 `[pieces]` as `ids`.
        """
        is_known = ids >= 0
        # Known ids are encoded as "A", a one-byte placeholder that is replaced below.
        codes = tf.where(is_known, ord("A"), -2 - ids)
        encoded = tf.strings.unicode_encode(codes[:, None], "UTF-8")
        encoded = tf.strings.bytes_split(encoded)
        symbols = encoded.value_rowids()
        values = tf.io.decode_raw(encoded.flat_values, tf.uint8, fixed_length=1)[:, 0]
        found = tf.where(
            tf.gather(is_known, symbols),
            tf.gather(ids, symbols),
            tf.gather(self._byte_ids, tf.cast(values, tf.int32)),
        )
        return tf.RaggedTensor.from_value_rowids(
            found, tf.gather(rows, symbols), num_rows, validate=False
        )
