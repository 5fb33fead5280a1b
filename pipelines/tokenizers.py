"""Train and load tokenizers by kind."""

import os
from collections.abc import Iterable

from .errors import DataError
from .sentencepiece_tokenizer import BytePairTokenizer
from .sentencepiece_tokenizer import train_byte_pairs
from .tokenizer_base import Tokenizer

_TRAINERS = {"bpe": train_byte_pairs}
_CLASSES = (BytePairTokenizer,)


def train_tokenizer(
    kind: str,
    sentences: Iterable[str],
    vocabulary_size: int,
    split_digits: bool = False,
) -> Tokenizer:
    """Train a tokenizer on text.

    Args:
        kind: "bpe" (byte pairs) or "word_piece".
        sentences: texts; chain both languages for a shared vocabulary.
        vocabulary_size: number of ids wanted, special ids and bytes among them.
        split_digits: make every digit a sub-word of its own.

    Raises:
        DataError: the text cannot give a vocabulary of that size.
    """
    if kind not in _TRAINERS:
        raise DataError(
            f"tokenizer.kind must be one of {', '.join(_TRAINERS)}. Received: {kind!r}."
        )
    return _TRAINERS[kind](sentences, vocabulary_size, split_digits=split_digits)


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
