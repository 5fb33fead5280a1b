"""Texts to rows of ids, and rows to batches of about one size."""

import numpy as np

from keras_transformer.errors import ModelError

LINES_AT_ONCE = 4096
CHARACTERS_AT_ONCE = 1 << 22


def tokenized(tokenizer, texts):
    """Lists of ids without start and end."""
    rows, some, size = [], [], 0
    for number, text in enumerate(texts, start=1):
        # Lone surrogates, which no tensor can hold, become question marks.
        some.append(text.encode("utf-8", "replace"))
        size += len(text)
        is_full = len(some) == LINES_AT_ONCE or size > CHARACTERS_AT_ONCE
        if is_full or number == len(texts):
            rows += tokenizer.tokenize(some).to_list()
            some, size = [], 0
    return rows


def prefix_rows(tokenizer, prefixes, model):
    """As `tokenized`, of beginnings that a model can put out.

    Raises:
        ModelError: an id that is none of the model's outputs.
    """
    rows = tokenized(tokenizer, prefixes)
    for text, row in zip(prefixes, rows, strict=True):
        if max(row, default=0) >= model.num_outputs:
            raise ModelError(f"prefix {text!r}: holds what the model never puts out")
    return rows


def check_fits(model, tokenizer):
    """Raises ValueError unless the model reads all ids and can end what it puts out."""
    if tokenizer.vocabulary_size > model.vocabulary_size:
        raise ValueError(
            "The tokenizer must not have more ids than the model. Received: "
            f"{tokenizer.vocabulary_size} and {model.vocabulary_size}."
        )
    if tokenizer.end_id >= model.num_outputs:
        raise ValueError(
            "The end id must be among the model's outputs. "
            f"Received: end_id={tokenizer.end_id}, num_outputs={model.num_outputs}."
        )


def check_pairs(sources, targets, name="targets"):
    """Raises ValueError unless there are as many of both."""
    if len(sources) != len(targets):
        raise ValueError(
            f"Lines and `{name}` must be as many. "
            f"Received: {len(sources)} and {len(targets)}."
        )


def batches(lengths, batch_tokens):
    """Indices of rows of similar lengths, in groups that fill `batch_tokens`."""
    batch = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if batch and lengths[i] * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def rectangle(rows, pad_id=0):
    """int32 [rows, longest], filled up with padding."""
    filled = np.full((len(rows), max(map(len, rows))), pad_id, "int32")
    for line, row in zip(filled, rows, strict=True):
        line[: len(row)] = row
    return filled
