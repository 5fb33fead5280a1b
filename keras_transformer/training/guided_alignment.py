"""Guided alignment: supervised cross-attention (Chen et al., 2016)."""

import numpy as np
from keras import ops

# Inputs that `same_groups` needs in addition to the ids.
GROUPS = ("source_groups", "target_groups")
# Keeps the logarithm finite if the attention scores of the aligned positions are 0.
_EPSILON = 1e-6


class GuidedAlignment:
    """Auxiliary loss that trains one cross-attention head to follow an alignment.

    An alignment assigns source positions to target positions.

    The loss of a target position is the negative logarithm of the sum of the attention
    scores at the aligned source positions. The loss constrains neither the division of
    this sum among the positions nor other heads.

    Args:
        aligned: Function that returns the alignment of a batch. Its argument is a dict
            with `source_ids` `[batch, source_length]` and `target_ids` `[batch,
            target_length]`. Its result is bool `[batch, target_length, source_length]`,
            true where the token predicted at the target position is aligned with the
            source position. Target positions without a source position have no loss.
        weight: Factor of this loss when it is added to the cross-entropy.
        layer: Index of the decoder layer, from 0. If `None`, the last layer of the
            lower half.
        head: Index of the head, from 0. If `None`, the mean of all heads of the layer.

    Raises:
        ValueError: If `weight` or an index is below 0.

    Examples:
        >>> guided = kt.training.GuidedAlignment(kt.training.same_groups, weight=0.5)
        >>> transformer = kt.Transformer.from_size("tiny", vocabulary_size=1000)
        >>> model = kt.training.TrainingModel(transformer, guided_alignment=guided)
    """

    def __init__(self, aligned, weight=1.0, layer=None, head=0):
        for name, value in (
            ("weight", weight),
            ("layer", layer or 0),
            ("head", head or 0),
        ):
            if value < 0:
                raise ValueError(f"`{name}` must be at least 0. Received: {value}.")
        self.aligned = aligned
        self.weight = weight
        self.layer = layer
        self.head = head

    def layer_index(self, transformer):
        """Returns the index of the guided decoder layer of a `Transformer`.

        Raises:
            ValueError: If the model has no such layer or head.
        """
        num_layers = len(transformer.decoder.layers)
        num_heads = transformer.num_heads
        layer = (num_layers - 1) // 2 if self.layer is None else self.layer
        if layer >= num_layers or (self.head or 0) >= num_heads:
            raise ValueError(
                f"`layer` must be below {num_layers} and `head` below {num_heads}. "
                f"Received: layer={layer}, head={self.head}."
            )
        return layer

    def loss(self, scores, inputs, weights):
        """Computes the loss, multiplied by `weight` and summed over target tokens.

        Args:
            scores: `[batch, num_heads, target_length, source_length]`, float32, the
                cross-attention scores (after the softmax) of the guided layer.
            inputs: The argument of `aligned`.
            weights: `[batch, target_length]`, float32, 0 for padding.

        Returns:
            Scalar, float32.
        """
        aligned = self.aligned(inputs)
        scores = ops.mean(scores, 1) if self.head is None else scores[:, self.head]
        scores = ops.where(aligned, scores, 0.0)
        aligned_scores = ops.sum(scores, axis=-1)  # [batch, target_length]
        weights = weights * ops.cast(ops.any(aligned, axis=-1), "float32")
        log_scores = ops.log(aligned_scores + _EPSILON)
        return -self.weight * ops.sum(weights * log_scores)


def same_groups(inputs):
    """Aligns target positions with the source positions of the same group.

    `inputs` has the ids, and `source_groups` and `target_groups` of their shapes, as in
    the batches of an `EncodedCorpus` with alignments.

    Returns:
        bool `[batch, target_length, source_length]`, for `GuidedAlignment`.

    Examples:
        >>> inputs = {
        ...     "source_ids": keras.ops.convert_to_tensor([[4, 5, 3]]),
        ...     "target_ids": keras.ops.convert_to_tensor([[2, 6]]),
        ...     "source_groups": keras.ops.convert_to_tensor([[1, 2, 0]]),
        ...     "target_groups": keras.ops.convert_to_tensor([[2, 0]]),
        ... }
        >>> kt.training.same_groups(inputs).numpy().tolist()
        [[[False, True, False], [False, False, False]]]
    """
    source, target = (inputs[name] for name in GROUPS)
    is_same = ops.equal(target[:, :, None], source[:, None, :])
    return ops.logical_and(is_same, target[:, :, None] > 0)


def next_words(begins_word, stands_for_word, pad_id=0):
    """Returns a function for `GuidedAlignment` that aligns with the next word.

    The function is for parsers, whose targets are linearized trees with one symbol per
    source word. Each target position is aligned with the subwords of the next word to
    be parsed: the first word whose symbol the decoder has not yet received. Once it has
    received the symbols of all words, positions are aligned with the source's end id.

    Args:
        begins_word: `[vocabulary_size]`, bool, true for ids that begin a source word,
            and for the end id.
        stands_for_word: `[vocabulary_size]`, bool, true for ids of symbols that
            represent a word in the target.
        pad_id: Id of padding in the source.

    Examples:
        >>> begins_word = [False] * 3 + [True] * 3 + [False]  # 3 is the end id
        >>> stands_for_word = [False] * 6 + [True]  # 6 is a symbol such as (NN)
        >>> aligned = kt.training.next_words(begins_word, stands_for_word)
        >>> source_ids = keras.ops.convert_to_tensor([[4, 5, 3]])
        >>> target_ids = keras.ops.convert_to_tensor([[2, 6]])
        >>> inputs = {"source_ids": source_ids, "target_ids": target_ids}
        >>> aligned(inputs).numpy().tolist()
        [[[True, False, False], [False, True, False]]]
    """
    begins_word = np.asarray(begins_word, "int32")
    stands_for_word = np.asarray(stands_for_word, "int32")

    def aligned(inputs):
        source_ids = inputs["source_ids"]
        # Word index, from 0, of each source position and of the next word.
        word = ops.cumsum(ops.take(begins_word, source_ids), axis=1) - 1
        word = ops.where(ops.equal(source_ids, pad_id), -1, word)
        symbols = ops.take(stands_for_word, inputs["target_ids"])
        next_word = ops.cumsum(symbols, axis=1)
        return ops.equal(next_word[:, :, None], word[:, None, :])

    return aligned
