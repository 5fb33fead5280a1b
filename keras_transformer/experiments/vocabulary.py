"""A model for more sub-words: what it has learnt stays, and rows are added."""

import numpy as np

from keras_transformer.errors import DataError
from keras_transformer.pipelines.tokenizers.bpe_extension import extend_bpe
from keras_transformer.transformer import Transformer


def update_vocabulary(model, tokenizer, sentences, num_pieces):
    """Adds sub-words learnt from new text to a model and its tokenizer.

    Old ids and their rows stay bit for bit. Each new row of the matrix that embeds and
    predicts is the mean of the rows of the sub-words that its piece replaces.

    Args:
        model: `Transformer`.
        tokenizer: Its `BytePairTokenizer`.
        sentences: Texts of both sides, see `extend_bpe`.
        num_pieces: How many sub-words to add at most.

    Returns:
        `(model, tokenizer)`, both new.

    Raises:
        DataError: the tokenizer is not of byte pairs, or the text gives no new piece.
    """
    if tokenizer.kind != "bpe":
        raise DataError(
            f"a vocabulary of kind {tokenizer.kind} cannot grow, only one of bpe: its "
            "old sub-words would no longer split words as they did."
        )
    growth = extend_bpe(tokenizer, sentences, num_pieces)
    if not growth.replaced:
        raise DataError("the text gives no sub-word that the vocabulary lacks.")
    size = growth.tokenizer.vocabulary_size
    larger = Transformer.from_config({**model.get_config(), "vocabulary_size": size})
    larger.build({"source_ids": (None, None), "target_ids": (None, None)})
    old_matrix = model.token_embedding.embeddings
    for old, new in zip(model.weights, larger.weights, strict=True):
        values = np.array(old)
        if old is old_matrix:
            added = [values[ids].mean(axis=0) for ids in growth.replaced]
            values = np.concatenate([values, added]).astype(values.dtype)
        new.assign(values)
    return larger, growth.tokenizer
