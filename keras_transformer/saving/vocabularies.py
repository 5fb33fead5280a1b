"""Vocabularies of stored models: kind, sizes, and whether both sides share one."""

import re

from pydantic import BaseModel

from keras_transformer.errors import ModelError
from keras_transformer.saving.names import tokenizer_folder

_TOKENIZER_FILES = {
    "tokenizer.model": "bpe",
    "tokenizer.json": "word_piece",
    "tokenizer.marian": "marian",
}


class VocabularyInfo(BaseModel):
    """Vocabulary of a model.

    Attributes:
        kind: "bpe", "word_piece", or "marian". `None` if unknown.
        size: Number of ids of the target, and of the source if they share embeddings.
        source_size: Number of ids of the source, if it has separate embeddings.
    """

    kind: str | None = None
    size: int | None = None
    source_size: int | None = None


def vocabulary_info(kind, settings):
    """Returns the `VocabularyInfo` for a kind and the arguments of `Transformer`."""
    return VocabularyInfo(
        kind=kind,
        size=settings["vocabulary_size"],
        source_size=_source_size(settings),
    )


def _source_size(settings):
    """Returns the number of source ids, or `None` if the embeddings are shared."""
    return (settings["variations"] or {}).get("source_vocabulary_size")


def parse_vocabulary(text):
    """Parses a `VocabularyInfo` from the row "tokenizer" of a model card."""
    pattern = r"(\w+), (?:([\d,]+) source and )?([\d,]+) (?:target )?sub-?words"
    found = re.match(pattern, text)
    if not found:
        return VocabularyInfo(kind=text or None)
    # `int` fails on thousands of digits, and on a comma without digits.
    source_size, size = (
        None if digits is None else int(digits.replace(",", "")[:18] or 0)
        for digits in found.groups()[1:]
    )
    return VocabularyInfo(kind=found[1], size=size, source_size=source_size)


def vocabulary_keys(settings, is_shared):
    """Returns the recipe keys of the section `tokenizer` that match a model's sizes."""
    keys = {"vocabulary_size": settings["vocabulary_size"]}
    if not is_shared:
        keys["shared"] = False
        keys["source_vocabulary_size"] = _source_size(settings)
    return keys


def tokenizer_kind(folder):
    """Returns the kind of the tokenizer of the model in `folder`."""
    return tokenizer_layout(folder)[0]


def tokenizer_layout(folder):
    """Returns the kind of a model's tokenizer, and whether both sides share it.

    The name of the tokenizer's file determines the kind. Separate tokenizers are in the
    folders `source` and `target`.
    """
    folder = tokenizer_folder(folder)
    for parent, is_shared in ((folder, True), (folder / "target", False)):
        for name, kind in _TOKENIZER_FILES.items():
            if (parent / name).is_file():
                return kind, is_shared
    names = " or ".join(_TOKENIZER_FILES)
    raise ModelError(f"{folder}: must contain a tokenizer ({names})")


def check_vocabularies(path, model, tokenizer):
    """Checks that model and tokenizer have the same number of ids, on both sides."""
    expected = model.source_vocabulary_size, model.vocabulary_size
    found = tokenizer.vocabulary_size, tokenizer.target.vocabulary_size
    if found != expected:
        found, expected = (
            f"{sizes[0]} source and {sizes[1]} target"
            if sizes[0] != sizes[1]
            else sizes[0]
            for sizes in (found, expected)
        )
        raise ModelError(
            f"{path}: the model has {expected} subwords, but the tokenizer has {found}"
        )
