"""Keys and values of earlier positions, shared by the hypotheses of a beam.

The hypotheses of a sentence keep theirs in one array, `[batch, num_heads, slots, dim]`:
position p of hypothesis b lies in slot `p * beam_size + b` and stays there. Where
hypotheses are reordered, only `ancestors` is, which says what slots each of them sees,
so that no key is ever moved, and a sentence's keys are read once for all of its beam.

A cache that grows has two parts: new slots join the small one, `recent_key` and
`recent_value`, and every `SETTLE_STEPS` positions whoever decodes lets that join the
large one, `key` and `value`, which is not copied in between. Slots that no hypothesis
sees any more are left out then: the hypotheses of a beam soon have most of their past
in common, so that a late position has little more to read than an early one. Backends
that need static shapes have `key_buffer` and `value_buffer`, with room for all
positions.
"""

from keras import ops

# Positions after which the small part should join the large one.
SETTLE_STEPS = 16


def empty_cache(batch_size, num_heads, key_dim, value_dim, num_slots, dtype):
    """A cache without positions; `num_slots` None: one that grows."""
    heads = batch_size, num_heads
    shapes = {
        "key_buffer": (*heads, key_dim, num_slots),
        "value_buffer": (*heads, num_slots, value_dim),
    }
    if num_slots is None:
        shapes = {
            "key": (*heads, 0, key_dim),
            "value": (*heads, 0, value_dim),
            "recent_key": (*heads, 0, key_dim),
            "recent_value": (*heads, 0, value_dim),
        }
    return {name: ops.zeros(shape, dtype=dtype) for name, shape in shapes.items()}


def is_buffer(cache):
    return "key_buffer" in cache


def append(cache, key, value, start_slot):
    """The cache with new slots; a buffer's are those from `start_slot` on."""
    if is_buffer(cache):
        return {
            "key_buffer": ops.slice_update(
                cache["key_buffer"], (0, 0, 0, start_slot), ops.swapaxes(key, 2, 3)
            ),
            "value_buffer": ops.slice_update(
                cache["value_buffer"], (0, 0, start_slot, 0), value
            ),
        }
    return {
        **cache,
        "recent_key": ops.concatenate([cache["recent_key"], key], axis=2),
        "recent_value": ops.concatenate([cache["recent_value"], value], axis=2),
    }


def parts(cache):
    """Keys and values of all slots in their order, in one or two pieces."""
    if is_buffer(cache):
        return [(ops.swapaxes(cache["key_buffer"], 2, 3), cache["value_buffer"])]
    return [
        (cache["key"], cache["value"]),
        (cache["recent_key"], cache["recent_value"]),
    ]


def num_slots(cache):
    if is_buffer(cache):
        return ops.shape(cache["value_buffer"])[2]
    return num_settled(cache) + ops.shape(cache["recent_key"])[2]


def num_settled(cache):
    """Slots of a growing cache's large part."""
    return ops.shape(cache["key"])[2]


def newest(cache, count):
    """A growing cache cut down to its last `count` slots, all of them recent."""
    return {
        **cache,
        "recent_key": cache["recent_key"][:, :, -count:],
        "recent_value": cache["recent_value"][:, :, -count:],
    }


def slots_in_use(ancestors):
    """The slots that hypotheses see, of as many as the sentence with the most has.

    Args:
        ancestors: `[batch, beam_size, slots]`, bool, from `extend_ancestors`.

    Returns:
        int32 `[batch, num_used]`, in their order; a sentence with fewer has others,
        which none of its hypotheses sees, after them.
    """
    used = ops.any(ancestors, axis=1)
    num_used = ops.max(ops.sum(ops.cast(used, "int32"), axis=1))
    count = ops.shape(used)[1]
    slots = ops.arange(count, dtype="int32")
    order = ops.argsort(ops.where(used, slots, slots + count), axis=1)
    return ops.cast(order[:, :num_used], "int32")


def take_slots(x, slots):
    """`[batch, n, slots, dim]` of `slots`, int32 `[batch, num]`, in their order."""
    batch, n, count, dim = ops.shape(x)
    first = ops.reshape(ops.arange(batch * n, dtype="int32") * count, (batch, n, 1))
    rows = ops.reshape(first + slots[:, None], (-1,))
    x = ops.take(ops.reshape(x, (-1, dim)), rows, axis=0)
    return ops.reshape(x, (batch, n, -1, dim))


def settled(caches, slots=None):
    """All layers' growing caches, the recent parts joined to the large ones.

    Args:
        caches: One of each layer.
        slots: int32 `[batch, num]`, those that are kept. None: all.
    """

    def join(large, recent):
        joined = ops.concatenate([large, recent], axis=2)
        return joined if slots is None else take_slots(joined, slots)

    return tuple(
        {
            "key": join(cache["key"], cache["recent_key"]),
            "value": join(cache["value"], cache["recent_value"]),
            "recent_key": cache["recent_key"][:, :, :0],
            "recent_value": cache["recent_value"][:, :, :0],
        }
        for cache in caches
    )


def extend_ancestors(ancestors, length, first_position=None):
    """Lets each hypothesis see `length` new positions of its own.

    Args:
        ancestors: `[batch, beam_size, slots]`, bool.
        length: Number of new positions.
        first_position: Where a buffer holds the first of them; what its slots held
            before is seen no more. None: the cache grows.

    Returns:
        `[batch, beam_size, slots]`, bool, with more slots where the cache grows.
    """
    batch, beam_size, count = ops.shape(ancestors)
    if first_position is None:
        count = length * beam_size
    hypotheses = ops.arange(beam_size, dtype="int32")
    slots = ops.arange(count, dtype="int32")
    own = (hypotheses[:, None] == slots[None, :] % beam_size)[None]
    if first_position is None:
        own = ops.broadcast_to(own, (batch, beam_size, count))
        return ops.concatenate([ancestors, own], axis=2)
    age = slots // beam_size - first_position
    new = ops.logical_and(age >= 0, age < length)
    return ops.where(new[None, None, :], own, ancestors)


def visible_slots(
    count, beam_size, length, start_index=None, window=None, ancestors=None
):
    """The slots that each query sees.

    Args:
        count: Number of slots, the queries' own included.
        beam_size: Hypotheses of a sentence.
        length: Queries of each; with a window in a buffer, 1.
        start_index: Position of the first query, for a buffer. None: the cache
            grows, and the queries' own slots are its last.
        window: Positions that a query sees, its own included. None: all.
        ancestors: `[batch, beam_size, count]`, bool, from `extend_ancestors`. None:
            a hypothesis sees all positions of its sentence, which has no other.

    Returns:
        `[batch or 1, beam_size * length, count]`, bool; None: all see all.
    """
    slots = ops.arange(count, dtype="int32")
    queries = ops.arange(length, dtype="int32")[:, None]
    one_query = isinstance(length, int) and length == 1
    if start_index is not None:
        seen = slots // beam_size <= start_index + queries
        needless = ancestors is not None and one_query
    else:
        distance = (count - 1 - slots) // beam_size - (length - 1 - queries)
        seen = distance >= 0
        if window is not None:
            seen = ops.logical_and(seen, distance < window)
        needless = window is None and one_query
    if ancestors is None:
        return None if needless else seen[None]
    if needless:
        return ancestors
    seen = ops.logical_and(ancestors[:, :, None], seen)
    return ops.reshape(seen, (-1, beam_size * length, count))
