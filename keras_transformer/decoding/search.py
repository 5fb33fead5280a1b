"""From source ids to target ids: what the Translator and the export both compile."""

import functools

from keras import ops

from keras_transformer.decoding.beam_search import beam_search
from keras_transformer.decoding.constraints import constrain
from keras_transformer.decoding.loop import has_dynamic_shapes
from keras_transformer.decoding.options import BeamSearch
from keras_transformer.decoding.options import Sampling
from keras_transformer.decoding.options import SpecialIds
from keras_transformer.decoding.sampling import sample


def translate_ids(
    model,
    source_ids,
    search=None,
    ids=SpecialIds(),
    n_best=1,
    prefix_ids=None,
    next_states=None,
    vocabulary_size=None,
    compaction="auto",
    kernels=None,
    **old_options,
):
    """Returns the best translations of a batch of source rows.

    Args:
        model: `Transformer` or `Ensemble`.
        source_ids: int32 `[batch, source_length]`, each row ids and the end id, then
            padding. A row that contains only its end id gets the empty translation,
            with score 0.
        search: `BeamSearch`. A translation has at most `extra_length` more tokens
            than its source, both end ids counted, its prefix not.
        ids: `SpecialIds`.
        n_best: Hypotheses to return per sentence, see `beam_search`.
        prefix_ids: int32 `[batch, prefix_length]`, the first tokens of each
            translation, then padding. If `None`, there are none.
        next_states: int32 `[num_states, vocabulary]`, what must not be generated, see
            `forbidden_phrases`. If `None`, nothing.
        vocabulary_size: Ids from this one on are never generated. If `None`, all are.
        compaction: See `beam_search`.
        kernels: The model's `decoding_kernels`. If `None`, they are made.
        **old_options: Fields of `BeamSearch` as keywords, as in version 0.1.

    Returns:
        `(sequences, scores)`: int32 `[batch, n_best, source_length + extra_length +
        prefix_length]` and float32 `[batch, n_best]`, see `beam_search`.
    """
    if search is None:
        search = BeamSearch(**old_options)
    options = {
        "start_id": ids.start,
        "end_id": ids.end,
        "pad_id": ids.pad,
        "forbidden_ids": (ids.unknown,),
        "vocabulary_size": vocabulary_size,
        "compaction": compaction,
    }
    start = _start(
        *(model, source_ids, search.beam_size, search.extra_length),
        *(prefix_ids, next_states, options, kernels),
    )
    return beam_search(
        beam_size=search.beam_size,
        length_penalty=search.length_penalty,
        length_penalty_kind=search.length_penalty_kind,
        patience=search.patience,
        n_best=n_best,
        **start,
        **options,
    )


def sample_ids(
    model,
    source_ids,
    sampling=None,
    ids=SpecialIds(),
    prefix_ids=None,
    next_states=None,
    vocabulary_size=None,
    compaction="auto",
    seed=None,
    **old_options,
):
    """Returns translations drawn at random; the arguments match `translate_ids`.

    Args:
        sampling: `Sampling`.
        seed: `keras.random.SeedGenerator` in place of `sampling.seed`.
    """
    if sampling is None:
        sampling = Sampling(**old_options)
    options = {
        "start_id": ids.start,
        "end_id": ids.end,
        "pad_id": ids.pad,
        "forbidden_ids": (ids.unknown,),
        "vocabulary_size": vocabulary_size,
        "compaction": compaction,
    }
    start = _start(
        *(model, source_ids, sampling.num_samples, sampling.extra_length),
        *(prefix_ids, next_states, options),
    )
    del start["reorder_cache"]  # samples never change places
    return sample(
        num_samples=sampling.num_samples,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=sampling.seed if seed is None else seed,
        **start,
        **options,
    )


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
