"""Teaching the decoder where to look in the source (Chen et al. 2016)."""

import tensorflow as tf

# Keeps the logarithm finite where no weight is on what should be looked at.
_SMALLEST = 1e-6


class GuidedAlignment:
    """A loss of one head of attention over the source, beside the loss of the tokens.

    Where it is known which source positions a target position belongs to, minus the
    logarithm of the weight that the head gives them, all together, is what it has to
    learn; where the weight lies among them is left to it. The other heads stay free.

    Args:
        aligned: Function of the inputs, `{"source_ids": [batch, source_length],
            "target_ids": [batch, target_length]}`, to `[batch, target_length,
            source_length]`, bool: which source positions belong to what the target
            position predicts. A row without any costs nothing.
        weight: What its mean over the target tokens is multiplied by.
        layer: Index of the decoder's layer. None: the last of the lower half.
        head: Index of the head.

    Raises:
        ValueError: a weight or an index below 0.
    """

    def __init__(self, aligned, weight=1.0, layer=None, head=0):
        for name, value in (("weight", weight), ("layer", layer or 0), ("head", head)):
            if value < 0:
                raise ValueError(f"`{name}` must be at least 0. Received: {value}.")
        self.aligned = aligned
        self.weight = weight
        self.layer = layer
        self.head = head

    def layer_of(self, transformer):
        """Index of the layer in a `Transformer`'s decoder.

        Raises:
            ValueError: it has no such layer or head.
        """
        num_layers, num_heads = transformer.num_layers, transformer.num_heads
        layer = (num_layers - 1) // 2 if self.layer is None else self.layer
        if layer >= num_layers or self.head >= num_heads:
            raise ValueError(
                f"The model has {num_layers} layers of {num_heads} heads. "
                f"Received: layer={layer}, head={self.head}."
            )
        return layer

    def loss(self, scores, inputs, weights):
        """Sum over the target tokens.

        Args:
            scores: `[batch, num_heads, target_length, source_length]`, float32, of the
                layer's attention over the source.
            inputs: As `aligned` takes them.
            weights: `[batch, target_length]`, float32, 0 for padding.

        Returns:
            Scalar, float32.
        """
        aligned = self.aligned(inputs)
        # [batch, target_length]
        found = tf.reduce_sum(tf.where(aligned, scores[:, self.head], 0.0), axis=-1)
        weights = weights * tf.cast(tf.reduce_any(aligned, axis=-1), tf.float32)
        return -self.weight * tf.reduce_sum(weights * tf.math.log(found + _SMALLEST))


def next_words(begins_word, stands_for_word, pad_id=0):
    """Function for `GuidedAlignment`: each position belongs to the next word.

    Where the target is a tree with a symbol for each word, these are the sub-words of
    the first word that has no symbol yet, and after the last word what follows it.

    Args:
        begins_word: `[vocabulary_size]`, bool, what begins a word of the source; the
            end id too.
        stands_for_word: `[vocabulary_size]`, bool, what stands for a word in the
            target.
        pad_id: Id that fills rows up.
    """
    begins_word = tf.constant(begins_word, tf.int32)
    stands_for_word = tf.constant(stands_for_word, tf.int32)

    def aligned(inputs):
        source_ids = inputs["source_ids"]
        # Places of words, from 0: of each source position, and of the next one.
        word = tf.cumsum(tf.gather(begins_word, source_ids), axis=1) - 1
        word = tf.where(tf.equal(source_ids, pad_id), -1, word)
        symbols = tf.gather(stands_for_word, inputs["target_ids"])
        following = tf.cumsum(symbols, axis=1)
        return tf.equal(following[:, :, None], word[:, None, :])

    return aligned
