"""The attention of one sentence pair, with the sub-words that it is between."""

from typing import NamedTuple

import numpy as np
from keras import ops

from keras_transformer.decoding.alignment import surfaces
from keras_transformer.errors import ModelError

KINDS = ("encoder", "decoder", "cross")
_START, _END = "<s>", "</s>"


class Attention(NamedTuple):
    """What `Transformer.attention_scores` gives for one pair, cut to its tokens."""

    source: list  # sub-words and the end, str
    read: list  # target tokens as the decoder reads them: the start, sub-words
    predicted: list  # as it predicts them: sub-words, the end
    scores: dict  # kind: float32 [num_layers, num_heads, rows, columns]

    def labels(self, kind):
        """Names of the rows and of the columns of `scores[kind]`."""
        return {
            "encoder": (self.source, self.source),
            "decoder": (self.read, self.read),
            # A row of it is what the next token is predicted from.
            "cross": (self.predicted, self.source),
        }[kind]

    def chosen(self, kind, layer=None, head=None):
        """The scores of a kind, of one layer or head (from 1) where one is given.

        Returns:
            List of (layer, head, [rows, columns]), numbers from 1.

        Raises:
            ModelError: the model lacks the kind, layer or head.
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
    """The attention of a sentence and its translation.

    Args:
        model: `Transformer`.
        tokenizer: Of both sides.
        source: A text.
        target: Its translation, the model's own or another.

    Returns:
        `Attention`.

    Raises:
        ModelError: a text is blank.
    """
    for name, text in (("source", source), ("target", target)):
        if not text.strip():
            raise ModelError(f"the {name} is empty")
    rows = tokenizer.tokenize([source, target]).to_list()
    names = [
        [name.decode("utf-8", "replace") for name in row]
        for row in surfaces(tokenizer, rows)
    ]
    for row in names:
        # Encoding adds a space in front of the text.
        row[0] = row[0].removeprefix(" ")
    found = model.attention_scores(
        {
            "source_ids": np.array([[*rows[0], tokenizer.end_id]], "int32"),
            "target_ids": np.array([[tokenizer.start_id, *rows[1]]], "int32"),
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
