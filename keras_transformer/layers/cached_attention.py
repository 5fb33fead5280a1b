"""Self-attention step by step, for decoding: part of `MultiHeadAttention`."""

import keras
from keras import ops

from keras_transformer.layers import decoding_cache
from keras_transformer.layers.attention_scores import masked_softmax


class CachedAttention:
    """What `MultiHeadAttention` does with a cache of earlier positions."""

    # Positions that self-attention sees; None: all.
    window = None

    def call_with_cache(self, query, cache, start_index, visible=None):
        """Causal self-attention of the positions from `start_index` on.

        For decoding: no gradient flows through it.

        Args:
            query: `[batch * beam_size, target_length, width]`, the new positions; the
                rows of a sentence follow each other.
            cache: From `init_cache` or the last call.
            start_index: Position of the first query, scalar int32.
            visible: `[batch, beam_size * target_length, slots]`, bool, what each query
                sees, see `decoding_cache.visible_slots`. None: all positions up to
                its own, of a sentence with one row.

        Returns:
            `[batch * beam_size, target_length, output_dim]` and the cache with the
            new positions.
        """
        length = ops.shape(query)[1]
        cache = self._append(query, cache, start_index)
        if visible is None:
            visible = self.visible_slots(
                decoding_cache.num_slots(cache),
                decoding_cache.is_buffer(cache),
                1,
                length,
                start_index,
            )
        batch = ops.shape(decoding_cache.parts(cache)[0][0])[0]
        # The rows of a sentence's beam become queries of one row.
        queries = self.query_dense(query)
        queries = ops.reshape(queries, (batch, -1, self.num_heads, self.key_dim))
        queries = _swapped(queries)
        logits, sizes = [], []
        for key, _ in decoding_cache.parts(cache):
            logits.append(self.logits_of_heads(queries, key))
            sizes.append(ops.shape(key)[2])
        logits = logits[0] if len(logits) == 1 else ops.concatenate(logits, axis=-1)
        mask = None if visible is None else visible[:, None]
        # Each query sees itself at least.
        scores = masked_softmax(logits, mask, may_lack_keys=False)
        scores = ops.cast(scores, self.compute_dtype)
        context, start = 0, 0
        for (_, value), size in zip(decoding_cache.parts(cache), sizes, strict=True):
            part = scores
            if len(sizes) > 1:
                part = scores[..., start : start + size]
            context = context + ops.matmul(part, value)
            start = start + size
        width = context.shape[-1] * self.num_heads
        output = ops.reshape(_swapped(context), (-1, length, width))
        return self.output_dense(output), self._trimmed(cache, query)

    def visible_slots(
        self, count, in_buffer, beam_size, length, start_index, ancestors=None
    ):
        """`decoding_cache.visible_slots` of this layer."""
        return decoding_cache.visible_slots(
            count,
            beam_size,
            length,
            start_index if in_buffer else None,
            self.window,
            ancestors,
        )

    def extend_ancestors(self, ancestors, cache, beam_size, length, start_index):
        """`decoding_cache.extend_ancestors` of this layer, before `call_with_cache`."""
        position = None
        if decoding_cache.is_buffer(cache):
            position = self._position_in_buffer(cache, beam_size, start_index)
        return decoding_cache.extend_ancestors(ancestors, beam_size, length, position)

    def init_cache(self, batch_size, max_length=None, beam_size=1):
        """An empty cache for `call_with_cache`.

        Args:
            batch_size: Number of sentences, may be a scalar tensor.
            max_length: Room for so many positions in buffers of fixed size. None:
                the cache grows.
            beam_size: Rows of a sentence.

        Returns:
            The cache of no positions, see `decoding_cache`.
        """
        return decoding_cache.empty_cache(
            batch_size,
            self.num_heads,
            self.key_dim,
            self.value_dim or self.key_dim,
            None if max_length is None else max_length * beam_size,
            self.compute_dtype,
        )

    def _append(self, query, cache, start_index):
        """The cache with keys and values of the new positions."""
        batch = ops.shape(decoding_cache.parts(cache)[0][0])[0]
        beam_size = ops.shape(query)[0] // batch
        new = []
        for dense in (self.key_dense, self.value_dense):
            x = dense(query)
            dim = x.shape[-1] // self.num_heads
            if query.shape[1] == 1:
                x = _swapped(ops.reshape(x, (batch, -1, self.num_heads, dim)))
            else:
                # [batch, beam, length, num_heads, dim], beams innermost of the slots
                length = ops.shape(query)[1]
                x = ops.reshape(x, (batch, -1, length, self.num_heads, dim))
                x = ops.transpose(x, (0, 3, 2, 1, 4))
                x = ops.reshape(x, (batch, self.num_heads, length * beam_size, dim))
            new.append(x)
        start_slot = self._position_in_buffer(cache, beam_size, start_index)
        return decoding_cache.append(cache, *new, start_slot * beam_size)

    def _position_in_buffer(self, cache, beam_size, position):
        return position

    def _trimmed(self, cache, query):
        """What is kept of a cache after `query`."""
        return cache


def _swapped(x):
    """`[a, b, c, d]` to `[a, c, b, d]`, without a gradient.

    As bits: TensorFlow transposes few floats by a library whose calls take longer
    than the work, and integers by itself.
    """
    bits = {"float32": "int32", "float16": "int16", "bfloat16": "int16"}
    dtype = keras.backend.standardize_dtype(x.dtype)
    if dtype not in bits:
        return ops.transpose(x, (0, 2, 1, 3))
    return ops.view(ops.transpose(ops.view(x, bits[dtype]), (0, 2, 1, 3)), dtype)
