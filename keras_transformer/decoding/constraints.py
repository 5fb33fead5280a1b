"""What translations must begin with and what they must not hold, as a step function.

Both work on log-probabilities, which stay the model's own: a search adds up how
probable the model finds what it was made to write.
"""

import numpy as np
from keras import ops

from keras_transformer.decoding.beam_search import NEVER


def constrain(
    start,
    rows_per_sentence,
    prefix_ids=None,
    next_states=None,
    end_id=3,
    pad_id=0,
):
    """The arguments of a search with constraints put around its step function.

    Args:
        start: mapping of `next_token_logits`, `reorder_cache`, `settle_cache`,
            `cache`, `context`, `batch_size` and `max_length`, see `beam_search`.
        rows_per_sentence: int, rows of the cache for each row of the context.
        prefix_ids: int32 [batch, prefix_length], the first tokens of each sentence,
            then padding. They come even where they are forbidden.
        next_states: int32 array [num_states, vocabulary], see `forbidden_phrases`:
            the state after each token, counted from 0 (where a search begins), -1 for
            a token that must not come. Logits without a column do not come either.
        end_id: int. At the longest length, where a sequence may be cut off, only
            tokens come that it could come after.
        pad_id: int, fills up the prefixes.

    Returns:
        `start` with the first five replaced, and `normalized=True`.
    """
    next_token_logits, reorder_cache = (
        start["next_token_logits"],
        start["reorder_cache"],
    )
    cache, context = {"model": start["cache"]}, {"model": start["context"]}
    if prefix_ids is not None:
        # One column of padding more, for all steps after the prefixes.
        context["prefix"] = ops.pad(
            prefix_ids, [[0, 0], [0, 1]], constant_values=pad_id
        )
    if next_states is not None:
        num_states = len(next_states)
        may_end = next_states[:, end_id] >= 0
        may_be_last = np.where(
            may_end[next_states] | (next_states < 0), next_states, -1
        )
        tables = ops.convert_to_tensor(
            np.concatenate([next_states, may_be_last]).astype("int32")
        )
        limits = ops.convert_to_tensor(start["max_length"], dtype="int32")
        context["limit"] = ops.broadcast_to(limits, (start["batch_size"],))
        num_rows = start["batch_size"] * rows_per_sentence
        cache["state"] = ops.zeros((num_rows,), dtype="int32")

    def step(ids, cache, context, index):
        logits, inner = next_token_logits(ids, cache["model"], context["model"], index)
        logits = ops.reshape(ops.cast(logits, "float32"), (-1, logits.shape[-1]))
        log_probs = free = ops.log_softmax(logits, axis=-1)  # [rows, vocabulary]
        cache = {**cache, "model": inner}
        if next_states is not None:
            cache["state"] = _advance(tables, cache["state"], ids[:, 0])
            is_last = ops.repeat(index + 1 >= context["limit"], rows_per_sentence)
            rows = cache["state"] + num_states * ops.cast(is_last, "int32")
            allowed = _fitted(ops.take(tables, rows, axis=0), free.shape[-1]) >= 0
            log_probs = ops.where(allowed, free, NEVER)
        if prefix_ids is not None:
            last = ops.shape(context["prefix"])[1] - 1
            forced = ops.take(context["prefix"], ops.minimum(index, last), axis=1)
            forced = ops.repeat(forced, rows_per_sentence)[:, None]
            tokens = ops.arange(logits.shape[-1], dtype="int32")
            only = ops.where(tokens == forced, free, NEVER)
            log_probs = ops.where(forced == pad_id, log_probs, only)
        return log_probs, cache

    def reorder(cache, parents):
        reordered = {"model": reorder_cache(cache["model"], parents)}
        if "state" in cache:
            reordered["state"] = ops.take(cache["state"], parents, axis=0)
        return reordered

    settle_cache = start.get("settle_cache")

    def settle(cache):
        return {**cache, "model": settle_cache(cache["model"])}

    return {
        **start,
        "next_token_logits": step,
        "reorder_cache": reorder,
        "settle_cache": settle_cache and settle,
        "cache": cache,
        "context": context,
        "normalized": True,
    }


def _fitted(states, size):
    """As many columns as there are logits, which may be more or fewer than tokens."""
    missing = max(0, size - states.shape[-1])
    return ops.pad(states[:, :size], [[0, 0], [0, missing]], constant_values=-1)


def _advance(tables, states, tokens):
    """States after one more token; where a prefix went against them, from the start."""
    flat = ops.reshape(tables, (-1,))
    places = states * tables.shape[1] + ops.cast(tokens, "int32")
    return ops.maximum(ops.take(flat, places, axis=0), 0)
