"""WordPiece tokenizer, which the paper uses for English-French (section 5.1).

A text is split into words whose concatenation is the whole text. Each space becomes a
space mark (U+2581) before the next word. A character outside the alphabet is encoded as
UTF-8 bytes, each of which is a word. Every word can be built from the pieces, so no
input is unknown and `detokenize(tokenize(text))` returns the text.
"""

import hashlib
import json
import os

import tensorflow as tf
import tensorflow_text

from keras_transformer.errors import DataError
from keras_transformer.pipelines.tokenizers.base import (
    SPACE_MARK,
    Tokenizer,
    write_atomically,
)

# Limits of a tokenizer file and of a piece in it.
_MAX_BYTES = 64 << 20
_MAX_PIECE_BYTES = 4_000
SUFFIX = "##"
SPECIAL_PIECES = ["[PAD]", "[UNK]", "[START]", "[END]"]
# Byte b is the private-use character U+E000 + b. If a text contains one of these
# characters, it is itself encoded as UTF-8 bytes.
BYTE_PIECES = [chr(0xE000 + byte) for byte in range(256)]
_BYTE_OF_PIECE = {piece: bytes([byte]) for byte, piece in enumerate(BYTE_PIECES)}
_UNKNOWN_SURFACE = " \u2047 "


class WordPieceTokenizer(Tokenizer):
    """Greedy longest-match WordPiece with byte fallback: no input is unknown.

    Args:
        vocabulary: The pieces in the order of their ids: the four special pieces, the
            256 bytes, the space mark, then pieces that begin a word and "##" pieces
            that continue a word. The alphabet is the set of characters that occur in
            both forms.
        split_digits: Whether every digit is a separate word.

    Raises:
        DataError: If a piece occurs twice, or if the vocabulary does not begin with the
            special pieces, the bytes and the space mark.
    """

    kind = "word_piece"
    file_name = "tokenizer.json"

    def __init__(self, vocabulary: list[str], split_digits: bool = False):
        super().__init__()
        fixed = [*SPECIAL_PIECES, *BYTE_PIECES, SPACE_MARK]
        distinct = set(vocabulary)
        if vocabulary[: len(fixed)] != fixed or len(distinct) < len(vocabulary):
            raise DataError(
                "a WordPiece vocabulary must have no duplicate pieces and must begin "
                f"with {', '.join(SPECIAL_PIECES)}, the 256 bytes and the space mark."
            )
        self.vocabulary_size = len(vocabulary)
        self._vocabulary = tuple(vocabulary)
        fields = {
            "kind": self.kind,
            "split_digits": split_digits,
            "vocabulary": list(vocabulary),
        }
        self._content = json.dumps(fields, ensure_ascii=False, indent=0).encode()
        alphabet = {
            piece
            for piece in distinct
            if len(piece) == 1 and SUFFIX + piece in distinct
        }
        self._split = WordSplitter(alphabet, split_digits)
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.constant(vocabulary), tf.range(len(vocabulary), dtype=tf.int64)
            ),
            default_value=self.unknown_id,
        )
        self._pieces = tensorflow_text.WordpieceTokenizer(
            table,
            suffix_indicator=SUFFIX,
            # With the default limit, longer words would become unknown.
            max_bytes_per_word=1 << 30,
            max_chars_per_token=max(map(len, vocabulary)),
            token_out_type=tf.int32,
            unknown_token=SPECIAL_PIECES[self.unknown_id],
        )
        surfaces = [_surface(piece) for piece in vocabulary]
        surfaces[self.unknown_id] = _UNKNOWN_SURFACE.encode()
        self._surfaces = tf.constant(surfaces)

    def tokenize(self, strings):
        return self._pieces.tokenize(self._split(strings)).merge_dims(1, 2)

    def pieces(self) -> list[str]:
        return list(self._vocabulary)

    def piece_bytes(self) -> list[bytes]:
        special = [b""] * len(SPECIAL_PIECES)
        return [*special, *map(_surface, self._vocabulary[len(special) :])]

    def save(self, folder: str | os.PathLike) -> None:
        write_atomically(os.path.join(folder, self.file_name), self._content)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "WordPieceTokenizer":
        with open(path, "rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise DataError(f"the file exceeds the limit of {_MAX_BYTES:,} bytes.")
        try:
            fields = json.loads(content)
            vocabulary = fields["vocabulary"]
            split_digits = fields["split_digits"]
            if fields["kind"] != cls.kind:
                raise ValueError(fields["kind"])
            if not isinstance(vocabulary, list) or type(split_digits) is not bool:
                raise TypeError(fields)
            for piece in vocabulary:
                if not 0 < len(piece.encode()) <= _MAX_PIECE_BYTES:
                    raise ValueError(piece)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise DataError("not a WordPiece tokenizer.") from None
        return cls(vocabulary, split_digits)

    def fingerprint(self) -> str:
        return hashlib.sha256(self._content).hexdigest()


class WordSplitter(tf.Module):
    """Splits each text into words whose concatenation is the whole text.

    A word is one of these:

    - an optional space mark, followed by a run of letters and digits or by one other
      character,
    - a space mark alone,
    - one byte of a character outside the alphabet.

    A text is split as if it began with a space.

    Args:
        alphabet: The characters that are not encoded as bytes.
        split_digits: Whether every digit is a separate word, without a space mark.
    """

    def __init__(self, alphabet: set[str], split_digits: bool):
        super().__init__()
        known = sorted(alphabet - {" ", SPACE_MARK} - _BYTE_OF_PIECE.keys())
        self._known = _string_table([" ", *known], [SPACE_MARK, *known])
        self._bytes = _string_table(list(_BYTE_OF_PIECE.values()), BYTE_PIECES)
        bytes_class = rf"\x{{{ord(BYTE_PIECES[0]):x}}}-\x{{{ord(BYTE_PIECES[-1]):x}}}"
        # With `split_digits`, a digit is a word without the preceding space mark.
        letters, digits, not_other = (
            (r"\p{L}\p{M}", r"|\p{N}", r"\p{N}")
            if split_digits
            else (r"\p{L}\p{M}\p{N}", "", "")
        )
        self._word = (
            rf"{SPACE_MARK}?[{letters}]+{digits}"
            rf"|{SPACE_MARK}?[^{SPACE_MARK}{not_other}{bytes_class}]"
            rf"|{SPACE_MARK}|[{bytes_class}]"
        )

    def __call__(self, strings):
        """Splits a string tensor `[batch]` into a RaggedTensor `[batch, (words)]`."""
        # Without a dtype, an empty list would become a float tensor.
        strings = tf.convert_to_tensor(strings, tf.string)
        characters = tf.strings.unicode_split(strings, "UTF-8", errors="replace")
        symbols = self._known.lookup(characters.flat_values)
        unknown = tf.where(symbols == "")
        in_bytes = tf.strings.bytes_split(tf.gather_nd(characters.flat_values, unknown))
        in_bytes = in_bytes.with_flat_values(self._bytes.lookup(in_bytes.flat_values))
        symbols = tf.tensor_scatter_nd_update(
            symbols, unknown, tf.strings.reduce_join(in_bytes, axis=1)
        )
        texts = tf.strings.reduce_join(characters.with_flat_values(symbols), axis=1)
        texts = tf.where(texts == "", texts, tf.strings.join([SPACE_MARK, texts]))
        return tensorflow_text.regex_split(texts, self._word, self._word)


def _string_table(keys: list, values: list[str]) -> tf.lookup.StaticHashTable:
    return tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant(keys), tf.constant(values)),
        default_value="",
    )


def _surface(piece: str) -> bytes:
    """Returns the bytes that a piece adds to a text."""
    if len(piece) > len(SUFFIX):
        piece = piece.removeprefix(SUFFIX)
    return b"".join(
        _BYTE_OF_PIECE.get(character) or character.replace(SPACE_MARK, " ").encode()
        for character in piece
    )
