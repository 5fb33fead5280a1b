"""Attention scores of a sentence pair, with the subwords of their rows and columns."""

from typing import NamedTuple

import numpy as np
from keras import ops

from keras_transformer.decoding.alignment import token_surfaces
from keras_transformer.decoding.batches import target_of
from keras_transformer.decoding.ensemble import Ensemble
from keras_transformer.errors import ModelError

KINDS = ("encoder", "decoder", "cross")
_START, _END = "<s>", "</s>"


class Attention(NamedTuple):
    """The `Transformer.attention_scores` of one sentence pair, without padding."""

    source: list  # str: the subwords and the end
    read: list  # str, tokens that the decoder reads: the start and the subwords
    predicted: list  # str, tokens that it predicts: the subwords and the end
    scores: dict  # kind: float32 [num_layers, num_heads, rows, columns]

    def labels(self, kind):
        """Returns the labels of the rows and of the columns of `scores[kind]`."""
        return {
            "encoder": (self.source, self.source),
            "decoder": (self.read, self.read),
            # A row is labeled with the token that is predicted from it.
            "cross": (self.predicted, self.source),
        }[kind]

    def select(self, kind, layer=None, head=None):
        """Selects the scores of one kind, for all layers and heads or for one.

        Args:
            kind: `"encoder"`, `"decoder"` or `"cross"`.
            layer: Number of a layer, from 1. If `None`, all layers.
            head: Number of a head, from 1. If `None`, all heads.

        Returns:
            List of (layer, head, scores `[rows, columns]`), numbered from 1.

        Raises:
            ModelError: If the model has no such kind, layer or head.
        """
        if kind not in KINDS:
            raise ModelError(
                f"kind must be one of {', '.join(KINDS)}. Received: {kind}"
            )
        num_layers, num_heads = self.scores[kind].shape[:2]
        for name, number, count in (
            ("layer", layer, num_layers),
            ("head", head, num_heads),
        ):
            if number is not None and not 1 <= number <= count:
                raise ModelError(
                    f"the model has {name}s 1 to {count}. Received: {name} {number}"
                )
        return [
            (i + 1, j + 1, self.scores[kind][i, j])
            for i in range(num_layers)
            for j in range(num_heads)
            if layer in (None, i + 1) and head in (None, j + 1)
        ]


def attention_of(model, tokenizer, source, target):
    """Computes the `Attention` of a sentence and a translation of it.

    Args:
        model: `Transformer`.
        tokenizer: Tokenizer of both sides.
        source: A text.
        target: Any translation of the text.

    Raises:
        ModelError: If a text is blank, or the model is an ensemble.
    """
    if isinstance(model, Ensemble):
        raise ModelError("an ensemble has no attention scores. Use one of its models.")
    for name, text in (("source", source), ("target", target)):
        if not text.strip():
            raise ModelError(f"the {name} is empty")
    sides = (tokenizer, source), (target_of(tokenizer), target)
    rows = [each.tokenize([text]).to_list()[0] for each, text in sides]
    names = [
        [name.decode("utf-8", "replace") for name in token_surfaces(each, [row])[0]]
        for (each, _), row in zip(sides, rows, strict=True)
    ]
    for row in names:
        # The tokenizer adds a space in front of the text.
        row[0] = row[0].removeprefix(" ")
    found = model.attention_scores(
        {
            "source_ids": np.array([[*rows[0], tokenizer.end_id]], "int32"),
            "target_ids": np.array(
                [[target_of(tokenizer).start_id, *rows[1]]], "int32"
            ),
        }
    )
    return Attention(
        source=[*names[0], _END],
        read=[_START, *names[1]],
        predicted=[*names[1], _END],
        scores={
            kind: np.asarray(ops.convert_to_numpy(scores))[0]
            for kind, scores in found.items()
        },
    )
