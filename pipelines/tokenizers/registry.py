"""Trains and loads tokenizers by kind, and joins those of separate vocabularies."""

import hashlib
import itertools
import os
import random
from collections.abc import Iterable, Sequence

import tensorflow as tf

from keras_transformer.errors import DataError
from keras_transformer.pipelines.lines import encode_text
from keras_transformer.pipelines.tokenizers.base import TEXT, Tokenizer
from keras_transformer.pipelines.tokenizers.byte_pairs import (
    BytePairTokenizer,
    train_byte_pairs,
)
from keras_transformer.pipelines.tokenizers.fairseq import FairseqTokenizer
from keras_transformer.pipelines.tokenizers.marian import MarianTokenizer
from keras_transformer.pipelines.tokenizers.normalization import (
    TextSettings,
    normalize_texts,
)
from keras_transformer.pipelines.tokenizers.word_pieces import (
    WordPieceTokenizer,
    train_word_pieces,
)

_TRAINERS = {"bpe": train_byte_pairs, "word_piece": train_word_pieces}
_SIDE_CLASSES = (BytePairTokenizer, WordPieceTokenizer)
_IMPORTED_CLASSES = (MarianTokenizer, FairseqTokenizer)
_CLASSES = (*_SIDE_CLASSES, *_IMPORTED_CLASSES)
# Subfolders of the tokenizers of models with separate vocabularies.
_SIDE_FOLDERS = ("source", "target")


class SeparateTokenizers(tf.Module):
    """The tokenizers of a model with separate vocabularies.

    It acts as the source tokenizer, and its attribute `target` is the other one. Only
    `save` and `fingerprint` apply to both.

    Args:
        source: `Tokenizer` of the source.
        target: `Tokenizer` of the target, of the same kind.

    Raises:
        DataError: If the kinds differ.

    Examples:
        >>> source = kt.pipelines.train_tokenizer("bpe", ["a dog runs"], 270)
        >>> target = kt.pipelines.train_tokenizer("bpe", ["ein Hund rennt"], 272)
        >>> both = kt.pipelines.SeparateTokenizers(source, target)
        >>> both.vocabulary_size, both.target.vocabulary_size
        (270, 272)
    """

    def __init__(self, source: Tokenizer, target: Tokenizer):
        super().__init__()
        if source.kind != target.kind:
            raise DataError(
                "the tokenizers of source and target must be of the same kind. "
                f"Received: {source.kind} and {target.kind}"
            )
        self.source = source
        self.target = target

    def __getattr__(self, name):
        # While it is created or copied, it has no source yet.
        if name.startswith("_") or name in _SIDE_FOLDERS:
            raise AttributeError(name)
        return getattr(self.source, name)

    def __reduce__(self):
        return SeparateTokenizers, (self.source, self.target)

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the tokenizers into `folder/source` and `folder/target`."""
        for side in _SIDE_FOLDERS:
            getattr(self, side).save(os.path.join(folder, side))

    def fingerprint(self) -> str:
        both = f"{self.source.fingerprint()} {self.target.fingerprint()}"
        return hashlib.sha256(both.encode()).hexdigest()


def train_tokenizer(
    kind: str,
    sentences: Iterable[str | None],
    vocabulary_size: int,
    split_digits: bool = False,
    max_sentences: int = 1_000_000,
    symbols: Sequence[str] = (),
    text: TextSettings | None = None,
) -> Tokenizer:
    """Trains a tokenizer on text.

    Args:
        kind: "bpe" (byte pairs) or "word_piece".
        sentences: Texts, read once. Chain both languages for a shared vocabulary.
            `None`, blank texts and texts with lone surrogates are skipped.
        vocabulary_size: Number of ids, including special ids and single bytes.
        split_digits: Whether every digit is a separate subword.
        max_sentences: Maximum number of texts. More are sampled at random.
        symbols: Words that are never split and have their own ids (byte pairs only).
        text: `TextSettings` of the tokenizer, such as its normalization, or `None`.

    Returns:
        `Tokenizer` of the kind.

    Raises:
        DataError: If `kind` is unknown or does not support `symbols`, or if there is
            too little text for a vocabulary of that size.
        ValueError: If `max_sentences` is below 1.

    Examples:
        >>> texts = ["a man rides a bike", "a dog runs"]
        >>> tokenizer = kt.pipelines.train_tokenizer("bpe", texts, vocabulary_size=280)
        >>> ids = tokenizer.tokenize(["a dog rides"])
        >>> tokenizer.detokenize(ids).numpy()[0].decode()
        'a dog rides'
    """
    if kind in [each.kind for each in _IMPORTED_CLASSES]:
        raise DataError(
            f"a {kind} tokenizer cannot be trained, only imported with its model. To "
            "fine-tune that model, set training.initial_model"
        )
    if kind not in _TRAINERS:
        raise DataError(
            f"tokenizer.kind must be one of {', '.join(_TRAINERS)}. Received: {kind!r}"
        )
    if max_sentences < 1:
        raise ValueError(
            f"`max_sentences` must be at least 1. Received: {max_sentences}."
        )
    sampled = reservoir_sample(filter(_has_text, sentences), max_sentences)
    if not sampled:
        raise DataError("a tokenizer needs at least one text that is not blank")
    if symbols and kind != BytePairTokenizer.kind:
        raise DataError(
            "words that are never split, such as the brackets and labels of parse "
            f"trees, require `tokenizer.kind: bpe`. Received: {kind}"
        )
    sampled = list(normalize_texts(sampled, text))
    options = {"symbols": symbols} if symbols else {}
    tokenizer = _TRAINERS[kind](
        sampled, vocabulary_size, split_digits=split_digits, **options
    )
    tokenizer.text = text
    return tokenizer


def _has_text(text: str | None) -> bool:
    """Returns whether a text is not blank, and can be encoded as UTF-8."""
    return bool(text and text.strip()) and encode_text(text) is not None


def reservoir_sample(texts: Iterable[str], size: int, seed: int = 0) -> list[str]:
    """Samples at most `size` texts uniformly without replacement, in one pass.

    If there are at most `size` texts, all are returned in order.
    """
    texts = iter(texts)
    drawn = list(itertools.islice(texts, size))
    generator = random.Random(seed)
    for seen, text in enumerate(texts, start=len(drawn) + 1):
        place = generator.randrange(seen)
        if place < size:
            drawn[place] = text
    return drawn


def load_tokenizer(folder: str | os.PathLike) -> Tokenizer:
    """Loads the tokenizer that `Tokenizer.save` wrote into a folder.

    Returns:
        `Tokenizer`, or `SeparateTokenizers` if the sides have separate vocabularies.

    Raises:
        DataError: If the folder contains no tokenizer, or if the tokenizer is damaged.

    Examples:
        >>> tokenizer = kt.open_model("phrases").tokenizer
        >>> tokenizer.save("tokenizer")
        >>> same = kt.pipelines.load_tokenizer("tokenizer")
        >>> same.kind, same.vocabulary_size
        ('bpe', 656)
    """
    tokenizer = _load_file(folder, _CLASSES)
    if tokenizer is not None:
        return tokenizer
    sides = [
        _load_file(os.path.join(folder, side), _SIDE_CLASSES) for side in _SIDE_FOLDERS
    ]
    if None not in sides:
        return SeparateTokenizers(*sides)
    names = ", ".join(each.file_name for each in _CLASSES)
    raise DataError(
        f"{os.path.abspath(folder)}: must contain a tokenizer ({names}). A .keras file "
        "needs its tokenizer in the same folder"
    )


def tokenizer_files() -> set[str]:
    """Returns the relative paths of all files that `load_tokenizer` can load."""
    one_side = {TEXT, *(each.file_name for each in _SIDE_CLASSES)}
    sides = {f"{side}/{name}" for side in _SIDE_FOLDERS for name in one_side}
    return {TEXT, *(each.file_name for each in _CLASSES)} | sides


def _load_file(folder, classes):
    """Returns the tokenizer whose file is in `folder`, or `None`."""
    for tokenizer_class in classes:
        path = os.path.join(folder, tokenizer_class.file_name)
        if os.path.isfile(path):
            return tokenizer_class.load(path)
    return None
