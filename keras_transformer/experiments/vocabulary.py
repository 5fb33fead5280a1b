"""Extends the vocabulary of a trained model."""

import numpy as np

from keras_transformer.errors import DataError
from keras_transformer.pipelines.tokenizers.bpe_extension import extend_bpe
from keras_transformer.transformer import Transformer


def update_vocabulary(model, tokenizer, sentences, num_pieces):
    """Adds subwords learned from new text to a model and its tokenizer.

    Existing ids and their embeddings stay bit-identical. The embedding of each new
    subword is the mean of the embeddings of the subwords that it replaces.

    Args:
        model: `Transformer`.
        tokenizer: The model's `BytePairTokenizer`.
        sentences: Texts of both sides, see `extend_bpe`.
        num_pieces: Largest number of subwords to add.

    Returns:
        `(model, tokenizer)`, both new.

    Raises:
        DataError: If the tokenizer is not BPE, or the text provides no new subword.
    """
    if tokenizer.kind != "bpe":
        raise DataError(
            f"a vocabulary of kind {tokenizer.kind} cannot be extended, only bpe: its "
            "existing subwords would segment words differently."
        )
    growth = extend_bpe(tokenizer, sentences, num_pieces)
    if not growth.replaced:
        raise DataError("the text contains no subword that the vocabulary lacks.")
    size = growth.tokenizer.vocabulary_size
    larger = Transformer.from_config({**model.get_config(), "vocabulary_size": size})
    larger.build({"source_ids": (None, None), "target_ids": (None, None)})
    old_matrix = model.token_embedding.embeddings
    for old, new in zip(model.weights, larger.weights, strict=True):
        values = np.asarray(old)
        if old is old_matrix:
            added = [values[ids].mean(axis=0) for ids in growth.replaced]
            values = np.concatenate([values, added]).astype(values.dtype)
        new.assign(values)
    return larger, growth.tokenizer
