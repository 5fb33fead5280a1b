"""Learns a WordPiece vocabulary of an exact size from text."""

from collections import Counter
from collections.abc import Iterable

import tensorflow as tf
from tensorflow_text.tools.wordpiece_vocab import (
    wordpiece_tokenizer_learner_lib as learner,
)

from keras_transformer.errors import DataError
from keras_transformer.pipelines.chunks import chunks
from keras_transformer.pipelines.tokenizers.base import SPACE_MARK
from keras_transformer.pipelines.tokenizers.word_pieces import (
    BYTE_PIECES,
    SPECIAL_PIECES,
    SUFFIX,
    WordPieceTokenizer,
    WordSplitter,
)

_CHUNK_SENTENCES = 8192
# Long and rare words are skipped, because the learner examines every substring of a
# word.
_MAX_WORD_LENGTH = 40
_MAX_WORDS = 200_000
# `_learn` stops at a threshold that gives enough pieces, but at most this multiple of
# the required number. The rarest of them are then dropped.
_SLACK = 1.1


def train_word_pieces(
    sentences: Iterable[str],
    vocabulary_size: int,
    split_digits: bool = False,
    character_coverage: float = 0.9999,
) -> WordPieceTokenizer:
    """Trains a WordPiece tokenizer on text (see `train_tokenizer`).

    Args:
        sentences: Texts to train on.
        vocabulary_size: Number of ids, including special ids and single bytes.
        split_digits: Whether every digit is a separate subword.
        character_coverage: Fraction of the text's characters that the alphabet covers.
            Rarer characters are encoded as bytes.

    Raises:
        DataError: If `vocabulary_size` is too small for the alphabet, or too large for
            the text.
    """
    sentences = list(sentences)
    alphabet = _alphabet(sentences, character_coverage)
    fixed = [*SPECIAL_PIECES, *BYTE_PIECES, SPACE_MARK, *alphabet]
    fixed += [SUFFIX + character for character in alphabet]
    if vocabulary_size < len(fixed):
        raise DataError(
            f"tokenizer.vocabulary_size={vocabulary_size} must be at least "
            f"{len(fixed)}, the number of special ids, bytes and characters (each also "
            "as a suffix)."
        )
    word_counts = _word_counts(sentences, WordSplitter(set(alphabet), split_digits))
    learned = _learn(word_counts, set(fixed), vocabulary_size)
    return WordPieceTokenizer((fixed + learned)[:vocabulary_size], split_digits)


def _alphabet(sentences: list[str], coverage: float) -> list[str]:
    """Returns the smallest set of characters that reaches the coverage, sorted."""
    counts = Counter()
    for sentence in sentences:
        counts.update(sentence)
    # Control characters are encoded as bytes. The splitter's regex would stop at a NUL.
    for character in list(counts):
        if character < "\x20" or character in {" ", SPACE_MARK, *BYTE_PIECES}:
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
    for chunk in chunks(sentences, _CHUNK_SENTENCES):
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

    The learner of tensorflow-text turns every substring whose count reaches a threshold
    into a piece. A lower threshold gives more pieces, so a binary search finds a high
    threshold that still gives enough.
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
    excluded = fixed | {SUFFIX + SPACE_MARK}
    low, high = 1, max((count for _, count in word_counts), default=1)
    learned, max_pieces = None, 0
    while low <= high:
        threshold = int((low * high) ** 0.5)
        pieces = learner.learn_with_thresh(word_counts, threshold, params)
        # A space mark occurs only at the start of a word, so it cannot be a suffix.
        pieces = [piece for piece in pieces if piece not in excluded]
        max_pieces = max(max_pieces, len(pieces))
        if len(pieces) >= room:
            learned = pieces
            low = threshold + 1
            if len(pieces) <= room * _SLACK:
                break
        else:
            high = threshold - 1
    if learned is None:
        raise DataError(
            f"tokenizer.vocabulary_size={vocabulary_size} is too large for this text. "
            f"The largest possible value is {len(fixed) + max_pieces}."
        )
    return learned
