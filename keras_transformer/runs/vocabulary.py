"""Extends the vocabulary of a trained model."""

import numpy as np

from keras_transformer.errors import DataError
from keras_transformer.pipelines import SeparateTokenizers
from keras_transformer.pipelines.tokenizers.bpe_extension import extend_bpe
from keras_transformer.transformer import Transformer


def extend_vocabulary(model, tokenizer, sentences, num_pieces, source_sentences=()):
    """Adds subwords learned from new text to a model and its tokenizer.

    Existing ids and their embeddings stay bit-identical. The embedding of each new
    subword is the mean of the embeddings of the subwords that it replaces.

    Args:
        model: `Transformer`.
        tokenizer: The model's tokenizer, of kind `"bpe"`.
        sentences: New texts of both sides, or only of the target if the vocabularies
            are separate. `None` and blank texts are skipped.
        num_pieces: Maximum number of subwords to add to each vocabulary.
        source_sentences: New texts of the source, if the vocabularies are separate.

    Returns:
        `(model, tokenizer)`, both new.

    Raises:
        DataError: If the tokenizer is not BPE, or the text provides no new subword.

    Examples:
        >>> opened = kt.open_model("phrases")
        >>> model, tokenizer = kt.runs.extend_vocabulary(
        ...     opened.model, opened.tokenizer, ["photograph", "photon"], num_pieces=5
        ... )
        >>> tokenizer.vocabulary_size - opened.tokenizer.vocabulary_size
        2
    """
    if tokenizer.kind != "bpe":
        raise DataError(
            f"a vocabulary of kind {tokenizer.kind} cannot be extended, because new "
            "subwords would change how it splits existing words. Use a model with "
            "tokenizer.kind=bpe"
        )
    target = source = extend_bpe(tokenizer.target, sentences, num_pieces)
    larger = target.tokenizer
    if tokenizer.target is not tokenizer:
        source = extend_bpe(tokenizer.source, source_sentences, num_pieces)
        larger = SeparateTokenizers(source.tokenizer, target.tokenizer)
    if not source.replaced and not target.replaced:
        raise DataError(
            "the text provides no new subwords that occur at least twice. Add more text"
        )
    return _resize(model, source.replaced, target.replaced), larger


def _resize(model, source_replaced, target_replaced):
    """Returns a copy of a model with an embedding for each list of replaced ids."""
    config = model.get_config()
    config["vocabulary_size"] += len(target_replaced)
    source_matrix = None
    if model.source_embedding is not None:
        source_matrix = model.source_embedding.embeddings
        size = model.source_vocabulary_size + len(source_replaced)
        config["variations"] = {**config["variations"], "source_vocabulary_size": size}
    larger = Transformer.from_config(config)
    larger.build({"source_ids": (None, None), "target_ids": (None, None)})
    for old, new in zip(model.weights, larger.weights, strict=True):
        values = np.asarray(old)
        if old.shape != new.shape:
            replaced = source_replaced if old is source_matrix else target_replaced
            added = [values[ids].mean(axis=0) for ids in replaced]
            values = np.concatenate([values, added]).astype(values.dtype)
        new.assign(values)
    return larger
