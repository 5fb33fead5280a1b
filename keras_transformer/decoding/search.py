"""From source ids to target ids: what the Translator and the export both compile."""

import functools

from keras import ops

from keras_transformer.decoding.beam_search import beam_search
from keras_transformer.decoding.constraints import constrain
from keras_transformer.decoding.decode_loop import has_dynamic_shapes
from keras_transformer.decoding.sampling import sample


def translate_ids(
    model,
    source_ids,
    beam_size=4,
    extra_length=50,
    prefix_ids=None,
    next_states=None,
    kernels=None,
    **search_options,
):
    """The best translations of a batch of source rows.

    Args:
        model: `Transformer`, or any object with its `init_cache`,
            `decode_with_cache`, `decoding_kernels`, `reorder_cache` and `settle_cache`.
        source_ids: int32 [batch, source_length], each row ids and the end id, then
            padding. A row that has no more than its end id gets the empty
            translation, with score 0.
        beam_size: int.
        extra_length: int; a translation has at most as many tokens as its source,
            both end ids counted, plus this many (the paper: 50), its prefix apart.
        prefix_ids: int32 [batch, prefix_length], what each translation begins with,
            then padding. None: nothing is given.
        next_states: int32 [num_states, vocabulary], what must not be generated, see
            `forbidden_phrases`. None: nothing.
        kernels: The model's `decoding_kernels`, where they are there. None: made anew.
        **search_options: of `beam_search`: `length_penalty`, `length_penalty_kind`,
            `patience`, `n_best`, ids, `vocabulary_size`, `compaction`.

    Returns:
        `(sequences, scores)` as `beam_search` has them: int32 [batch, n_best,
        source_length + extra_length + prefix_length] and float32 [batch, n_best].
    """
    start = _start(
        *(model, source_ids, beam_size, extra_length),
        *(prefix_ids, next_states, search_options, kernels),
    )
    return beam_search(beam_size=beam_size, **start, **search_options)


def sample_ids(
    model,
    source_ids,
    num_samples=1,
    extra_length=50,
    prefix_ids=None,
    next_states=None,
    **sample_options,
):
    """Translations drawn at random: `translate_ids` with `sample`'s options."""
    start = _start(
        *(model, source_ids, num_samples, extra_length),
        *(prefix_ids, next_states, sample_options),
    )
    del start["reorder_cache"]  # samples never change places
    return sample(num_samples=num_samples, **start, **sample_options)


def score_ids(model, source_ids, target_ids, labels, pad_id=0, unknown_id=1):
    """Log-probabilities of given translations, their end ids included.

    Args:
        model: `Transformer`.
        source_ids: int32 [batch, source_length], ids and the end id, then padding.
        target_ids: int32 [batch, target_length], the start id and ids, then padding.
        labels: int32 [batch, target_length], ids and the end id, then padding.
        pad_id: id of the padding.
        unknown_id: what labels count as that the model has no logits of.

    Returns:
        float32 [batch].
    """
    logits = model({"source_ids": source_ids, "target_ids": target_ids}, training=False)
    logits = ops.cast(logits, "float32")
    known = ops.where(labels < logits.shape[-1], labels, unknown_id)
    picked = ops.take_along_axis(logits, known[:, :, None], axis=2)[:, :, 0]
    log_probs = picked - ops.logsumexp(logits, axis=-1)  # [batch, target_length]
    return ops.sum(ops.where(labels == pad_id, 0.0, log_probs), axis=1)


def _start(
    model,
    source_ids,
    rows_per_sentence,
    extra_length,
    prefix_ids,
    next_states,
    options,
    kernels=None,
):
    """The arguments that beam search and sampling share."""
    batch_size, source_length = ops.shape(source_ids)
    pad_id = options.get("pad_id", 0)
    lengths = _num_tokens(source_ids, pad_id)
    room = extra_length
    buffer_length = source_length + extra_length
    if prefix_ids is not None:
        room = extra_length + _num_tokens(prefix_ids, pad_id)
        buffer_length = buffer_length + ops.shape(prefix_ids)[1]
    # A cache that grows costs only what is filled, but needs dynamic shapes.
    grows = has_dynamic_shapes(options.get("compaction", "auto"))
    cache, context = model.init_cache(
        source_ids,
        max_length=None if grows else buffer_length,
        beam_size=rows_per_sentence,
    )
    # XLA, where nothing grows, would put the transposition back into the steps.
    if kernels is None and grows:
        kernels = model.decoding_kernels()
    next_token_logits = functools.partial(model.decode_with_cache, kernels=kernels)
    start = {
        "next_token_logits": next_token_logits,
        "reorder_cache": model.reorder_cache,
        "settle_cache": model.settle_cache,
        "cache": cache,
        "context": context,
        "batch_size": batch_size,
        "max_length": ops.where(lengths > 1, lengths + room, 0),
        "buffer_length": buffer_length,
    }
    if prefix_ids is None and next_states is None:
        return start
    end_id = options.get("end_id", 3)
    return constrain(start, rows_per_sentence, prefix_ids, next_states, end_id, pad_id)


def _num_tokens(ids, pad_id):
    return ops.sum(ops.cast(ids != pad_id, "int32"), axis=1)
