"""KV cache of incremental decoding, shared by the hypotheses of a beam.

All hypotheses of a sentence store their keys and values in one array, `[batch,
num_heads, slots, dim]`. At each position, every hypothesis adds one slot. Reordering
hypotheses moves no slot and changes only `Cache.ancestors`, which marks the slots that
each hypothesis attends to. So no key is copied, and the keys of a sentence are read
once for its whole beam.

`Growing` caches append to a small recent part, which `compact` merges into the main
part every `COMPACT_INTERVAL` positions. `compact` also drops the slots that no
hypothesis attends to any more: the hypotheses of a beam soon share most of their past.
`Buffer` caches have a fixed capacity, for XLA and JAX, which need static shapes.
"""

from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.numerics.indexing import gather, gather_each, shape
from keras_transformer.numerics.softmax import mask_to_bias

# Number of positions between calls of `compact`.
COMPACT_INTERVAL = 16
# Factor by which `grow` multiplies the capacity of a cache.
GROWTH = 3
# JAX requires start indices of one type. A Python 0 would be int64 where 64 bits are
# enabled, but positions are int32.
_ZERO = np.int32(0)


class Growing(NamedTuple):
    """Keys and values of one layer, `[batch, num_heads, slots, dim]`, in two parts."""

    key: Any
    value: Any
    recent_key: Any
    recent_value: Any

    def append(self, key, value, place):
        """Appends a position: keys and values `[batch, num_heads, beam_size, dim]`."""
        return self._replace(
            recent_key=ops.concatenate([self.recent_key, key], axis=2),
            recent_value=ops.concatenate([self.recent_value, value], axis=2),
        )

    def parts(self):
        """Returns (keys, values) of the main part and of the recent part."""
        return [(self.key, self.value), (self.recent_key, self.recent_value)]


class Buffer(NamedTuple):
    """Keys and values of one layer in a ring buffer with a fixed number of slots."""

    key: Any  # [batch, num_heads, key_dim, slots], the layout for `query @ key`
    value: Any  # [batch, num_heads, slots, value_dim]

    def append(self, key, value, place):
        """Writes one position, at `place` of the ring buffer (see `extend`)."""
        slot = place * key.shape[2]
        key = ops.swapaxes(key, 2, 3)
        return Buffer(
            ops.slice_update(self.key, (_ZERO, _ZERO, _ZERO, slot), key),
            ops.slice_update(self.value, (_ZERO, _ZERO, slot, _ZERO), value),
        )

    def parts(self):
        """Returns a list of one part: (keys, values), shaped as in `Growing`."""
        return [(ops.swapaxes(self.key, 2, 3), self.value)]


class Cache(NamedTuple):
    """Keys and values of all layers, and the slots that hypotheses attend to."""

    layers: tuple  # a Growing or a Buffer per layer
    # bool [batch, beam_size, slots], whether a hypothesis attends to a slot. If
    # `sees_all`, it is empty, [batch, 1, 0].
    ancestors: Any
    # int32 [batch, 1, slots], the positions of the slots of a growing cache, if the
    # decoder needs their distances, or else ().
    positions: Any = ()

    @property
    def beam_size(self):
        """Number of hypotheses per sentence."""
        return self.ancestors.shape[1]

    @property
    def is_buffer(self):
        """True if the capacity is fixed."""
        return isinstance(self.layers[0], Buffer)

    @property
    def has_positions(self):
        """True if `positions` is an array."""
        return not isinstance(self.positions, tuple)

    @property
    def sees_all(self):
        """True if no mask is needed: a growing cache with one hypothesis."""
        return self.beam_size == 1 and not self.is_buffer

    def biases(self):
        """Returns a bias `[batch, 1, beam_size, slots]` per part, or `None`s."""
        if self.sees_all:
            return [None, None]
        bias = mask_to_bias(self.ancestors)[:, None]
        if self.is_buffer:
            return [bias]
        return self._split(bias)

    def distances(self, index, place):
        """Returns distances from `index`, int32 `[batch or 1, 1, slots]`, per part.

        `place` comes from `extend`.
        """
        if not self.is_buffer:
            return self._split(self.positions - index)
        num_slots = shape(self.ancestors)[2]
        places = ops.arange(num_slots, dtype="int32") // self.beam_size
        # A ring buffer overwrites the oldest position.
        distances = -((place - places) % (num_slots // self.beam_size))
        return [distances[None, None]]

    def _split(self, x):
        """Splits the last axis into the main and the recent part of a growing cache."""
        num_main = shape(self.layers[0].key)[2]
        return [x[..., :num_main], x[..., num_main:]]


def empty_cache(
    attentions,
    batch_size,
    beam_size=1,
    max_length=None,
    window=None,
    has_distances=False,
):
    """Returns a cache without positions for the `MultiHeadAttention` of each layer.

    `max_length` is the capacity of a `Buffer` cache, in positions. If it is `None`, the
    cache grows at every step. Self-attention attends to `window` positions, or to all.
    Only with `has_distances`, `Cache.distances` can be called.
    """
    if max_length is not None and window is not None:
        minimum = min if isinstance(max_length, int) else ops.minimum
        max_length = minimum(max_length, window)
    slots = 0 if max_length is None else max_length * beam_size

    def empty_layer(attention):
        batch, dtype = (batch_size, attention.num_heads), attention.compute_dtype
        key_dim = attention.key_dim
        value = ops.zeros((*batch, slots, attention.value_dim or key_dim), dtype=dtype)
        if max_length is not None:
            return Buffer(ops.zeros((*batch, key_dim, slots), dtype=dtype), value)
        key = ops.zeros((*batch, 0, key_dim), dtype=dtype)
        return Growing(key, value, key, value)

    ancestors = ops.zeros((batch_size, beam_size, slots), dtype="bool")
    positions = ()
    if has_distances and max_length is None:
        positions = ops.zeros((batch_size, 1, 0), dtype="int32")
    return Cache(tuple(map(empty_layer, attentions)), ancestors, positions)


def extend(cache, index, window=None):
    """Prepares the cache for position `index` of every hypothesis.

    In the returned cache, each hypothesis also attends to its own new slot, and no
    longer to positions outside `window`. Also returns the argument `place` of `append`.
    """
    if cache.is_buffer:
        return _extend_buffer(cache, index)
    if window is not None:
        # Backends index slots in int32, so the count is limited.
        count = min((window - 1) * cache.beam_size, 2**31 - 1)
        cache = _newest(cache, count)
    if cache.has_positions:
        new_shape = (shape(cache.positions)[0], 1, cache.beam_size)
        new = ops.broadcast_to(ops.cast(index, "int32"), new_shape)
        positions = ops.concatenate([cache.positions, new], axis=2)
        cache = cache._replace(positions=positions)
    if cache.sees_all:
        return cache, index
    batch, beam_size, _ = shape(cache.ancestors)
    hypotheses = ops.arange(beam_size, dtype="int32")
    own = hypotheses[:, None] == hypotheses
    own = ops.broadcast_to(own, (batch, beam_size, beam_size))
    ancestors = ops.concatenate([cache.ancestors, own], axis=2)
    return cache._replace(ancestors=ancestors), index


def _extend_buffer(cache, index):
    """Like `extend`, for a cache with a fixed capacity."""
    _, beam_size, num_slots = shape(cache.ancestors)
    # With a window, the newest position replaces the oldest. Attention does not depend
    # on the order of slots.
    place = index % (num_slots // beam_size)
    slots = ops.arange(num_slots, dtype="int32")
    hypotheses = ops.arange(beam_size, dtype="int32")
    own = hypotheses[:, None] == slots % beam_size
    is_new = slots // beam_size == place
    # `where` would lose the static batch size.
    kept = ops.logical_and(cache.ancestors, ops.logical_not(is_new))
    ancestors = ops.logical_or(kept, ops.logical_and(own, is_new))
    return cache._replace(ancestors=ancestors), place


def _newest(cache, count):
    """Drops all but the last `count` slots of the recent parts.

    The main parts have none, because `compact` does nothing if there is a window.
    """

    def newest(x):
        return x[:, :, -count:] if count else x[:, :, :0]

    layers = tuple(
        layer._replace(
            recent_key=newest(layer.recent_key), recent_value=newest(layer.recent_value)
        )
        for layer in cache.layers
    )
    positions = newest(cache.positions) if cache.has_positions else ()
    return Cache(layers, newest(cache.ancestors), positions)


def reorder(cache, parents):
    """Reorders the hypotheses of a cache within their beams.

    Parents, int32 `[batch * beam_size]`, are the old rows that the new rows continue.
    """
    if cache.sees_all:
        return cache
    _, beam_size, num_slots = shape(cache.ancestors)
    rows = ops.reshape(cache.ancestors, (-1, num_slots))
    rows = gather(rows, parents, axis=0)
    batch_size = cache.ancestors.shape[0] or -1
    ancestors = ops.reshape(rows, (batch_size, beam_size, num_slots))
    return cache._replace(ancestors=ancestors)


def grow(cache, window=None):
    """Multiplies the capacity of a `Buffer` cache by `GROWTH`, up to the window."""
    num_slots = cache.ancestors.shape[2]
    extra = (GROWTH - 1) * num_slots
    if window is not None:
        extra = min(extra, window * cache.beam_size - num_slots)

    def pad(x, axis):
        return ops.pad(x, [[0, extra * (i == axis)] for i in range(len(x.shape))])

    layers = tuple(
        Buffer(pad(layer.key, 3), pad(layer.value, 2)) for layer in cache.layers
    )
    return Cache(layers, pad(cache.ancestors, 2))


def compact(cache, window=None):
    """Merges the recent parts into the main ones and drops unreachable slots.

    This copies the whole cache, so call it only every `COMPACT_INTERVAL` positions.
    Caches with a fixed capacity or a window are returned unchanged.
    """
    if cache.is_buffer or window is not None:
        return cache
    slots = None if cache.sees_all else reachable_slots(cache.ancestors)

    def merge(main, recent):
        merged = ops.concatenate([main, recent], axis=2)
        return merged if slots is None else gather_each(merged, slots, axis=2)

    layers = tuple(
        Growing(
            merge(layer.key, layer.recent_key),
            merge(layer.value, layer.recent_value),
            layer.recent_key[:, :, :0],
            layer.recent_value[:, :, :0],
        )
        for layer in cache.layers
    )
    if slots is None:
        return cache._replace(layers=layers)

    positions = gather_each(cache.positions, slots, 2) if cache.has_positions else ()
    return Cache(layers, gather_each(cache.ancestors, slots, axis=2), positions)


def reachable_slots(ancestors):
    """Returns the slots that at least one hypothesis attends to, in ascending order.

    They are int32 `[batch, num_reachable]`, the largest count in the batch. Other
    sentences are padded with unreachable slots.
    """
    reachable = ops.any(ancestors, axis=1)
    num_reachable = ops.max(ops.sum(ops.cast(reachable, "int32"), axis=1))
    count = shape(reachable)[1]
    slots = ops.arange(count, dtype="int32")
    order = ops.argsort(ops.where(reachable, slots, slots + count), axis=1)
    return ops.cast(order[:, :num_reachable], "int32")
