"""Consistency training: a loss for the divergence of two passes over a batch."""

import keras
from keras import ops

from keras_transformer.training.projected_loss import LossWeights
from keras_transformer.training.replicas import num_replicas, replica_index


class Consistency:
    """Loss term for the divergence of two passes over the same batch.

    The passes predict the distributions p (first pass) and q (second pass).

    `"rdrop"` (Liang et al., 2021): the passes differ in their dropout. The loss is the
    mean of both cross-entropies plus `weight / 4 * (KL(p, q) + KL(q, p))`. This is half
    of the loss of Liang et al., who add the losses of both passes.

    `"simcut"` (Gao et al., 2022): in the second pass, the embeddings of some source and
    target tokens are zero. The loss is the cross-entropy of the first pass plus
    `weight * KL(p, q)`. Gradients flow through both distributions.

    Args:
        kind: `"rdrop"` or `"simcut"`.
        weight: Weight of the divergence, alpha in both papers.
        cutoff: Fraction of tokens whose embeddings are zero in the second pass, in
            [0, 1). For `"simcut"` only.

    Raises:
        ValueError: If `kind` is unknown, `weight` is below 0, or `cutoff` is outside
            [0, 1).

    Examples:
        >>> transformer = kt.Transformer.from_size("tiny", vocabulary_size=100)
        >>> simcut = kt.training.Consistency("simcut", weight=3.0, cutoff=0.05)
        >>> model = kt.training.TrainingModel(transformer, consistency=simcut)
    """

    def __init__(self, kind="simcut", weight=3.0, cutoff=0.05):
        if kind not in ("rdrop", "simcut"):
            raise ValueError(f'`kind` must be "rdrop" or "simcut". Received: {kind!r}.')
        if weight < 0:
            raise ValueError(f"`weight` must be at least 0. Received: {weight}.")
        if not 0 <= cutoff < 1:
            raise ValueError(f"`cutoff` must be in [0, 1). Received: {cutoff}.")
        self.kind = kind
        self.weight = weight
        self.cutoff = cutoff if kind == "simcut" else 0.0

    @property
    def loss_weights(self):
        """The `LossWeights` of the two passes."""
        if self.kind == "rdrop":
            return LossWeights(0.5, 0.5, self.weight / 4, self.weight / 4)
        return LossWeights(1.0, 0.0, self.weight, 0.0)


def draw_token_factors(ids, rate, seed_generator, kept_factor=1.0):
    """Draws factors by which the embeddings of tokens are multiplied.

    A fraction `rate` of the tokens is dropped: its factor is 0. The factor of the
    others is `kept_factor`.

    Returns:
        Float32, with the shape `[batch, length]` of `ids`.
    """
    # All replicas have the same seed, so each draws for all and uses its own part.
    shape = (num_replicas(), *ops.shape(ids))
    draws = keras.random.uniform(shape, seed=seed_generator)[replica_index()]
    return ops.where(draws < rate, 0.0, kept_factor)
