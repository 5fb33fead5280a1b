"""Attention scores of a sentence pair, with labels for their rows and columns."""

from typing import NamedTuple

import numpy as np
from keras import ops

from keras_transformer.decoding.alignment import join_units, token_surfaces
from keras_transformer.decoding.batches import (
    check_positions,
    encode_texts,
    select_target,
)
from keras_transformer.decoding.ensemble import Ensemble
from keras_transformer.errors import ModelError

KINDS = ("encoder", "decoder", "cross")
_START, _END = "<s>", "</s>"


class Attention(NamedTuple):
    """The attention of one sentence pair, without padding.

    Tokens are subwords, with one exception: if a character is encoded as several byte
    subwords, these form one token. Attention to such a token is the sum over its
    subwords. Attention from it is the mean over them.

    Attributes:
        source: List of str, the source tokens and the end symbol.
        decoder_inputs: List of str, the start symbol and the target tokens.
        decoder_outputs: List of str, the target tokens and the end symbol.
        scores: Dict from kinds (`"encoder"`, `"decoder"`, `"cross"`) to float32
            `[num_layers, num_heads, rows, columns]`. Rows are queries, columns keys.
        texts: The source text and the target text.
        is_mean: Whether the scores are a mean over layers and heads, as in exports. In
            this case, there are no end symbols, and `decoder_inputs` is empty.
    """

    source: list
    decoder_inputs: list
    decoder_outputs: list
    scores: dict
    texts: tuple = ("", "")
    is_mean: bool = False

    def labels(self, kind):
        """Returns the labels of the rows and of the columns of `scores[kind]`."""
        return {
            "encoder": (self.source, self.source),
            "decoder": (self.decoder_inputs, self.decoder_inputs),
            # The label of a row is the token that is predicted from it.
            "cross": (self.decoder_outputs, self.source),
        }[kind]

    def axes(self, kind):
        """Returns the titles of the row and column axes of `scores[kind]`."""
        target = "translation" if kind == "cross" else "translation so far"
        query = "source" if kind == "encoder" else target
        key = target if kind == "decoder" else "source"
        return f"{query} (query)", f"{key} (key)"

    def select(self, kind, layer=None, head=None):
        """Returns a list of (layer, head, scores `[rows, columns]`) of one kind.

        Layers and heads count from 1. If one is `None`, all of them are returned.

        Raises:
            ModelError: If the kind, the layer or the head does not exist.

        Examples:
            >>> opened = kt.open_model("phrases")
            >>> attention = kt.visualization.compute_attention(
            ...     opened.model, opened.tokenizer, "12 euros", "12 Euro"
            ... )
            >>> for layer, head, scores in attention.select("cross", head=1):
            ...     print(layer, head, scores.shape)
            ...
            1 1 (5, 7)
            2 1 (5, 7)
        """
        if kind not in KINDS:
            raise ModelError(
                f"kind must be one of {', '.join(KINDS)}. Received: {kind}"
            )
        if kind not in self.scores or (self.is_mean and (layer or head)):
            raise ModelError(
                "a SavedModel has only the mean cross-attention of its last layers. "
                "For other kinds, layers and heads, use the run folder"
            )
        num_layers, num_heads = self.scores[kind].shape[:2]
        limits = ("layer", layer, num_layers), ("head", head, num_heads)
        for name, number, count in limits:
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


def compute_attention(
    model, tokenizer, source, target, max_length=None, max_target_length=None
):
    """Computes the `Attention` of a sentence and a translation of it.

    Args:
        model: `Transformer`.
        tokenizer: Tokenizer of both sides.
        source: A text.
        target: A translation of the text, not necessarily the model's.
        max_length: Maximum number of subwords of the source, including the end symbol.
            If `None`, there is no limit.
        max_target_length: Like `max_length`, but for the target, including the start
            symbol.

    Returns:
        `Attention` with the kinds of scores that the model has.

    Raises:
        ModelError: If a text is blank, exceeds its maximum, or is too long for the
            model's learned positions, or if the model is an ensemble.

    Examples:
        >>> opened = kt.open_model("phrases")
        >>> found = kt.visualization.compute_attention(
        ...     opened.model, opened.tokenizer, "12 euros", "12 Euro"
        ... )
        >>> found.source
        ['1', '2', ' ', 'e', 'uro', 's', '</s>']
        >>> found.scores["cross"].shape  # layers, heads, target and source positions
        (2, 4, 5, 7)
    """
    # Imported here because it loads TensorFlow.
    from keras_transformer.decoding.text import compute_unit_attention

    if isinstance(model, Ensemble):
        raise ModelError("an ensemble has no attention scores. Use one of its models")
    sides = (tokenizer, select_target(tokenizer))
    rows = [
        encode_texts(side, [text])[0]
        for side, text in zip(sides, (source, target), strict=True)
    ]
    # A normalizer may remove all characters of a text.
    _check_texts(source if rows[0] else "", target if rows[1] else "")
    source_ids = [*rows[0], tokenizer.end_id]
    target_ids = [select_target(tokenizer).start_id, *rows[1]]
    check_positions(model, (source_ids, target_ids), (source, target))
    for name, ids, symbol, limit in (
        ("source", source_ids, "end", max_length),
        ("target", target_ids, "start", max_target_length),
    ):
        if limit is not None and len(ids) > limit:
            raise ModelError(
                f"the {name} has {len(ids)} subwords, including the {symbol} symbol, "
                f"but at most {limit} are allowed. Pass a shorter text"
            )
    subword_scores = model.attention_scores(
        {
            "source_ids": np.array([source_ids], "int32"),
            "target_ids": np.array([target_ids], "int32"),
        }
    )
    (source_tokens, source_units), (target_tokens, target_units) = (
        _tokens(side, row) for side, row in zip(sides, rows, strict=True)
    )
    # Rows and columns of the start id and the end id are added.
    source_units = np.pad(source_units, (0, 1))
    read_units, predicted_units = (
        np.pad(target_units, place) for place in ((1, 0), (0, 1))
    )
    read_units[0, 0] = predicted_units[-1, -1] = source_units[-1, -1] = 1
    units = {
        "encoder": (source_units, source_units),
        "decoder": (read_units, read_units),
        "cross": (predicted_units, source_units),
    }
    return Attention(
        source=[*source_tokens, _END],
        decoder_inputs=[_START, *target_tokens],
        decoder_outputs=[*target_tokens, _END],
        scores={
            kind: np.asarray(
                compute_unit_attention(ops.convert_to_numpy(scores)[0], *units[kind])
            )
            for kind, scores in subword_scores.items()
        },
        texts=_replace_surrogates(source, target),
    )


def compute_export_attention(translator, source, target):
    """Computes the `Attention` of a model that was exported as a SavedModel.

    An export returns only one matrix, the mean cross-attention of its last layers,
    without the start and end symbols.

    Args:
        translator: `ExportedTranslator`.
        source: A text.
        target: A translation of the text, not necessarily the model's.

    Returns:
        `Attention` with only that matrix.

    Raises:
        ModelError: If a text is blank or too long.
    """
    _check_texts(source, target)
    (found,) = translator.attend([source], [target])
    if found is None:
        raise ModelError(
            "the sentence or its translation exceeds the export's limits. Pass a "
            "shorter one, or the model that was exported"
        )
    source_pieces, target_pieces, scores = found
    return Attention(
        source=source_pieces,
        decoder_inputs=[],
        decoder_outputs=target_pieces,
        scores={"cross": scores[None, None]},
        texts=_replace_surrogates(source, target),
        is_mean=True,
    )


def _tokens(tokenizer, row):
    """Returns the tokens of a text, and their membership `[subwords, tokens]`."""
    (tokens,), (membership,) = join_units(token_surfaces(tokenizer, [row]))
    return [each.decode() for each in tokens], membership


def _replace_surrogates(*texts):
    """Replaces unpaired surrogates with question marks, as `encode_texts` does."""
    return tuple(text.encode("utf-8", "replace").decode() for text in texts)


def _check_texts(source, target):
    for name, text in (("source", source), ("target", target)):
        if not text.strip():
            raise ModelError(f"the {name} must not be blank")
