"""WordPiece tokenizer, which the paper uses for English-French (section 5.1).

A text is split into words whose concatenation is the whole text. Each space becomes a
space mark (U+2581) before the next word. A character outside the alphabet is encoded as
UTF-8 bytes, each of which is a word. Every word can be built from the pieces, so no
input is unknown and `detokenize(tokenize(text))` returns the text.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Literal

import tensorflow as tf
import tensorflow_text
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tensorflow_text.tools.wordpiece_vocab import (
    wordpiece_tokenizer_learner_lib as learner,
)

from keras_transformer.errors import DataError
from keras_transformer.pipelines.tokenizers.base import (
    SPECIAL_PIECES,
    Tokenizer,
    lookup_table,
)
from keras_transformer.pipelines.tokenizers.model_check import (
    MAX_PIECE_LENGTH,
    SPACE_MARK,
)

SUFFIX = "##"
# Byte b is the private-use character U+E000 + b. If a text contains one of these
# characters, it is itself encoded as UTF-8 bytes.
BYTE_PIECES = [chr(0xE000 + byte) for byte in range(256)]
_BYTE_OF_PIECE = {piece: bytes([byte]) for byte, piece in enumerate(BYTE_PIECES)}
_UNKNOWN_SURFACE = " \u2047 "

_CHUNK_SENTENCES = 8192
# Long and rare words are skipped, because the learner examines every substring of a
# word.
_MAX_WORD_LENGTH = 40
_MAX_WORDS = 200_000
# Accepted number of learned pieces, relative to the required number. The rarest are
# dropped.
_SLACK = 1.1


class _Fields(BaseModel):
    """Content of a tokenizer file."""

    model_config = ConfigDict(strict=True)

    kind: Literal["word_piece"]
    split_digits: bool
    vocabulary: list[Annotated[str, Field(min_length=1, max_length=MAX_PIECE_LENGTH)]]


class WordPieceTokenizer(Tokenizer):
    """Greedy longest-match WordPiece with byte fallback: no input is unknown.

    The vocabulary has the four special pieces, the 256 bytes, the space mark, then
    pieces that begin a word and "##" pieces that continue a word. The alphabet is the
    set of characters that occur in both forms.
    """

    kind = "word_piece"
    file_name = "tokenizer.json"

    def __init__(self, vocabulary: list[str], split_digits: bool = False):
        super().__init__()
        fixed = [*SPECIAL_PIECES, *BYTE_PIECES, SPACE_MARK]
        distinct = set(vocabulary)
        if vocabulary[: len(fixed)] != fixed or len(distinct) < len(vocabulary):
            raise DataError(
                "a WordPiece vocabulary must have no duplicate subwords and must begin "
                f"with {', '.join(SPECIAL_PIECES)}, the 256 bytes and the space mark"
            )
        self.vocabulary_size = len(vocabulary)
        self._vocabulary = tuple(vocabulary)
        fields = {"kind": self.kind, "split_digits": split_digits}
        fields["vocabulary"] = list(vocabulary)
        self._content = json.dumps(fields, ensure_ascii=False, indent=0).encode()
        alphabet = {p for p in distinct if len(p) == 1 and SUFFIX + p in distinct}
        self._split = WordSplitter(alphabet, split_digits)
        numbers = {piece: number for number, piece in enumerate(vocabulary)}
        table = lookup_table(numbers, self.unknown_id, value_type=tf.int64)
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
        words = self._split(self.normalized(strings))
        return self._pieces.tokenize(words).merge_dims(1, 2)

    def pieces(self) -> list[str]:
        return list(self._vocabulary)

    def piece_bytes(self) -> list[bytes]:
        special = [b""] * len(SPECIAL_PIECES)
        return [*special, *map(_surface, self._vocabulary[len(special) :])]

    @classmethod
    def _parse(cls, content):
        try:
            fields = _Fields.model_validate_json(content)
        except ValidationError:
            raise DataError(
                "not a WordPiece tokenizer. Copy the folder of the tokenizer again"
            ) from None
        return cls(fields.vocabulary, fields.split_digits)


class WordSplitter(tf.Module):
    """Splits each text into words whose concatenation is the whole text.

    A word is one of these:

    - an optional space mark, followed by a run of letters and digits or by one other
      character,
    - a space mark alone,
    - one byte of a character outside the alphabet.

    A text is split as if it began with a space. Characters outside the alphabet are
    encoded as bytes. With `split_digits`, a digit is a word without a space mark.
    """

    def __init__(self, alphabet: set[str], split_digits: bool):
        super().__init__()
        known = sorted(alphabet - {" ", SPACE_MARK} - _BYTE_OF_PIECE.keys())
        symbols = {" ": SPACE_MARK, **{each: each for each in known}}
        self._known = lookup_table(symbols, "", value_type=tf.string)
        pieces = {byte: piece for piece, byte in _BYTE_OF_PIECE.items()}
        self._bytes = lookup_table(pieces, "", value_type=tf.string)
        bytes_class = rf"\x{{{ord(BYTE_PIECES[0]):x}}}-\x{{{ord(BYTE_PIECES[-1]):x}}}"
        letters, lone_digits = r"\p{L}\p{M}\p{N}", ""
        if split_digits:
            letters, lone_digits = r"\p{L}\p{M}", r"\p{N}"
        digit = f"|{lone_digits}" if lone_digits else ""
        self._word = (
            rf"{SPACE_MARK}?[{letters}]+{digit}"
            rf"|{SPACE_MARK}?[^{SPACE_MARK}{lone_digits}{bytes_class}]"
            rf"|{SPACE_MARK}|[{bytes_class}]"
        )

    def __call__(self, strings):
        """Splits a string tensor `[batch]` into a RaggedTensor `[batch, (words)]`."""
        # Without a dtype, an empty list would become a float tensor.
        strings = tf.convert_to_tensor(strings, tf.string)
        characters = tf.strings.unicode_split(strings, "UTF-8", errors="replace")
        # Characters outside the alphabet are replaced by the symbols of their bytes.
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


def _surface(piece: str) -> bytes:
    """Returns the bytes that a piece adds to a text."""
    if len(piece) > len(SUFFIX):
        piece = piece.removeprefix(SUFFIX)
    return b"".join(
        _BYTE_OF_PIECE.get(character) or character.replace(SPACE_MARK, " ").encode()
        for character in piece
    )


def train_word_pieces(
    sentences: Iterable[str],
    vocabulary_size: int,
    split_digits: bool = False,
    character_coverage: float = 0.9999,
) -> WordPieceTokenizer:
    """Trains a WordPiece tokenizer on text (see `train_tokenizer`).

    Characters beyond the fraction `character_coverage` of the text are encoded as
    bytes.
    """
    sentences = list(sentences)
    alphabet = _alphabet(sentences, character_coverage)
    fixed = [*SPECIAL_PIECES, *BYTE_PIECES, SPACE_MARK, *alphabet]
    fixed += [SUFFIX + character for character in alphabet]
    if vocabulary_size < len(fixed):
        raise DataError(
            f"tokenizer.vocabulary_size={vocabulary_size} must be at least "
            f"{len(fixed)}, the number of special ids, bytes and characters (each also "
            "as a suffix)"
        )
    word_counts = _word_counts(sentences, WordSplitter(set(alphabet), split_digits))
    learned = _learn(word_counts, set(fixed), vocabulary_size)
    return WordPieceTokenizer((fixed + learned)[:vocabulary_size], split_digits)


def _alphabet(sentences: list[str], coverage: float) -> list[str]:
    """Returns the smallest set of characters that reaches the coverage, sorted."""
    counts = Counter(itertools.chain.from_iterable(sentences))
    # Control characters are encoded as bytes. The splitter's regex would stop at a NUL.
    for character in [*map(chr, range(0x20)), " ", SPACE_MARK, *BYTE_PIECES]:
        del counts[character]
    remaining = coverage * counts.total()
    alphabet = []
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item)):
        if remaining <= 0:
            break
        alphabet.append(character)
        remaining -= count
    return sorted(alphabet)


def _word_counts(sentences: list[str], splitter: WordSplitter) -> list[tuple[str, int]]:
    """Returns the most frequent words and their counts, without byte pieces."""
    counts = Counter()
    for start in range(0, len(sentences), _CHUNK_SENTENCES):
        chunk = sentences[start : start + _CHUNK_SENTENCES]
        counts.update(splitter(tf.constant(chunk)).flat_values.numpy().tolist())
    words = ((word.decode(), count) for word, count in counts.items())
    words = [
        (word, count)
        for word, count in words
        if len(word) <= _MAX_WORD_LENGTH and word not in BYTE_PIECES
    ]
    return sorted(words, key=lambda item: (-item[1], item))[:_MAX_WORDS]


def _learn(
    word_counts: list[tuple[str, int]], fixed: set[str], vocabulary_size: int
) -> list[str]:
    """Learns enough pieces to fill the vocabulary, sorted by count.

    tensorflow-text learns the substrings whose count reaches a threshold. A binary
    search finds a high threshold that still gives enough of them.
    """
    params = learner.Params(
        upper_thresh=None,
        lower_thresh=None,
        num_iterations=4,
        max_input_tokens=-1,
        max_token_length=_MAX_WORD_LENGTH,
        max_unique_chars=1 << 21,
        vocab_size=vocabulary_size,
        slack_ratio=0.0,
        include_joiner_token=True,
        joiner=SUFFIX,
        reserved_tokens=[],
    )
    room = vocabulary_size - len(fixed)
    # A space mark occurs only at the start of a word, so it cannot be a suffix.
    excluded = fixed | {SUFFIX + SPACE_MARK}
    low, high = 1, max((count for _, count in word_counts), default=1)
    learned = None
    while low <= high:
        threshold = int((low * high) ** 0.5)
        pieces = learner.learn_with_thresh(word_counts, threshold, params)
        pieces = [piece for piece in pieces if piece not in excluded]
        if len(pieces) < room:
            high = threshold - 1
        else:
            learned, low = pieces, threshold + 1
            if len(pieces) <= room * _SLACK:
                break
    if learned is None:  # the last threshold was 1
        raise DataError(
            f"tokenizer.vocabulary_size={vocabulary_size} is too large for this text. "
            f"The largest possible value is {len(fixed) + len(pieces)}"
        )
    return learned
