"""Vocabularies of stored models: kind, sizes, and whether both sides share one."""

from keras_transformer.errors import ModelError

_TOKENIZER_FILES = {
    "tokenizer.model": "bpe",
    "tokenizer.json": "word_piece",
    "tokenizer.marian": "marian",
}


def vocabulary_keys(settings, is_shared):
    """Returns the recipe keys of the section `tokenizer` that match a model's sizes."""
    keys = {"vocabulary_size": settings["vocabulary_size"]}
    if not is_shared:
        keys["shared"] = False
        keys["source_vocabulary_size"] = source_size(settings)
    return keys


def source_size(settings):
    """Returns the number of source ids, or `None` if the embeddings are shared."""
    return (settings["variations"] or {}).get("source_vocabulary_size")


def tokenizer_layout(folder):
    """Returns the kind of a model's tokenizer, and whether both sides share it.

    The name of the tokenizer's file determines the kind. Separate tokenizers are in the
    folders `source` and `target`.
    """
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
