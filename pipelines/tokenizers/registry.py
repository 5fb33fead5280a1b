"""Train and load tokenizers by kind."""

import os
from collections.abc import Iterable
from collections.abc import Sequence

from keras_transformer.errors import DataError
from keras_transformer.pipelines.chunks import sample
from keras_transformer.pipelines.tokenizers.base import Tokenizer
from keras_transformer.pipelines.tokenizers.byte_pairs import BytePairTokenizer
from keras_transformer.pipelines.tokenizers.byte_pairs import train_byte_pairs
from keras_transformer.pipelines.tokenizers.word_piece_training import train_word_pieces
from keras_transformer.pipelines.tokenizers.word_pieces import WordPieceTokenizer

_TRAINERS = {"bpe": train_byte_pairs, "word_piece": train_word_pieces}
_CLASSES = (BytePairTokenizer, WordPieceTokenizer)


def train_tokenizer(
    kind: str,
    sentences: Iterable[str | None],
    vocabulary_size: int,
    split_digits: bool = False,
    max_sentences: int = 1_000_000,
    symbols: Sequence[str] = (),
) -> Tokenizer:
    """Train a tokenizer on text.

    Args:
        kind: "bpe" (byte pairs) or "word_piece".
        sentences: texts, read once; chain both languages for a shared vocabulary.
            None and blank ones are skipped.
        vocabulary_size: number of ids wanted, special ids and bytes among them.
        split_digits: make every digit a sub-word of its own.
        max_sentences: train on a random sample of this size of a larger text.
        symbols: words with ids of their own, never split (byte pairs only).

    Raises:
        DataError: there is no text, or it cannot give a vocabulary of that size.
    """
    if kind not in _TRAINERS:
        raise DataError(
            f"tokenizer.kind must be one of {', '.join(_TRAINERS)}. Received: {kind!r}."
        )
    texts = (text for text in sentences if text is not None and text.strip())
    sampled = sample(texts, max_sentences)
    if not sampled:
        raise DataError("there is no text to train a tokenizer on.")
    if symbols and kind != BytePairTokenizer.kind:
        raise DataError(f"symbols of trees need tokenizer.kind bpe, not {kind}.")
    options = {"symbols": symbols} if symbols else {}
    return _TRAINERS[kind](
        sampled, vocabulary_size, split_digits=split_digits, **options
    )


def load_tokenizer(folder: str | os.PathLike) -> Tokenizer:
    """Load the tokenizer that `Tokenizer.save` wrote into a folder.

    Raises:
        DataError: there is none, or its file is damaged.
    """
    for tokenizer_class in _CLASSES:
        path = os.path.join(folder, tokenizer_class.file_name)
        if os.path.isfile(path):
            try:
                return tokenizer_class.load(path)
            except DataError as error:
                raise DataError(f"{path}: {error}") from None
    names = " or ".join(each.file_name for each in _CLASSES)
    raise DataError(f"{os.fspath(folder)}: no tokenizer here ({names}).")
