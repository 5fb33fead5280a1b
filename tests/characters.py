"""A character tokenizer, and a small model with random weights for its ids."""

import functools

import numpy as np
import tensorflow as tf
from small_transformers import built

ALPHABET = "abcdefg .!"


class Characters(tf.Module):
    """A tokenizer whose subwords are the characters of `ALPHABET`."""

    pad_id, unknown_id, start_id, end_id = range(4)
    vocabulary_size = 4 + len(ALPHABET)

    def fingerprint(self):
        return ALPHABET

    def tokenize(self, strings):
        rows = [
            [
                ALPHABET.find(c) + 4 if c in ALPHABET else 1
                for c in tf.compat.as_text(text)
            ]
            for text in np.array(strings, "object")
        ]
        return tf.ragged.constant(rows, dtype=tf.int32, ragged_rank=1)

    def detokenize(self, ids):
        texts = []
        for row in np.array(ids):
            row = list(row)
            row = row[: row.index(3)] if 3 in row else row
            texts.append("".join(ALPHABET[i - 4] for i in row if i >= 4).encode())
        return tf.constant(texts)


@functools.cache
def characters_model():
    """Returns a `Transformer` with two more ids than the tokenizer, which tests share.

    Its matrices have twice their initial values, which would give nearly equal
    probabilities to all tokens.
    """
    model = built(Characters.vocabulary_size + 2, 1, 24, 40, num_heads=3, seed=20)
    for weight in model.trainable_weights:
        if len(weight.shape) == 2:
            weight.assign(weight * 2.0)
    return model


def endless_model():
    """Returns a `Transformer` that never predicts the end id.

    All decoder outputs are a vector of ones, and the end id's embedding points in the
    opposite direction.
    """
    model = built(Characters.vocabulary_size, 1, 24, 40, num_heads=3, seed=21)
    norm = model.decoder.layers[-1].feed_forward_add_norm.layer_norm
    norm.gamma.assign(np.zeros(24))
    norm.beta.assign(np.ones(24))
    variable = model.token_embedding.embeddings
    embeddings = np.array(np.asarray(variable))
    embeddings[Characters.end_id] = -1e4
    variable.assign(embeddings)
    return model
