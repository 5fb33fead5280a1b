"""Beam search and sampling that translate source ids with a model.

`Translator` and exported models compile these functions.
"""

import functools

import numpy as np
from keras import ops

from keras_transformer.decoding.beam_search import beam_search
from keras_transformer.decoding.constraints import ConstrainedDecoder
from keras_transformer.decoding.ensemble import Ensemble, EnsembleDecoder, build_models
from keras_transformer.decoding.incremental import IncrementalDecoder, arrange_weights
from keras_transformer.decoding.loop import first_capacity, has_dynamic_shapes
from keras_transformer.decoding.options import BeamSearch, Sampling, SpecialIds
from keras_transformer.decoding.sampling import sample
from keras_transformer.decoding.steering import SteeredDecoder
from keras_transformer.numerics.indexing import shape


def translate_ids(
    model,
    source_ids,
    search=BeamSearch(),
    ids=SpecialIds(),
    n_best=1,
    prefix_ids=None,
    automaton=None,
    prefix_ends=None,
    token_ranks=None,
    vocabulary_size=None,
    drop_finished="auto",
    decoder=None,
    num_results=None,
    is_checked=False,
    required_ids=None,
    word_edges=None,
    first_ids=None,
):
    """Translates a batch of source ids by beam search.

    Use it if your program tokenizes and batches the text itself, and else `Translator`.

    Args:
        model: `Transformer` or `Ensemble`.
        source_ids: int32 `[batch, source_length]`, ids and the end id, then padding.
            What follows the first end id is ignored. A row that contains only the end
            id or padding gets the empty translation, with score 0.
        search: `BeamSearch`. A translation has at most `extra_length` more tokens
            than its source, and `max_length_ratio` times as many. Lengths include the
            end id but not the prefix and the required phrases.
        ids: `SpecialIds`, with the padding id of the model.
        n_best: Number of best translations to find per source, at most `beam_size`.
        num_results: Number of translations to return per source. Those after the first
            `n_best` are the next best ones found. If `None`, `n_best`.
        vocabulary_size: If given, only ids below this number are generated.
        prefix_ids: int32 `[batch, prefix_length]`, the first tokens of each
            translation, then padding, or `None`.
        required_ids: int32 `[batch, places]`, rows of `required_row`, then padding, the
            phrases that the translations of each source must contain, or `None`.
        automaton: What `forbidden_transitions` returns, to exclude phrases. If `None`,
            no phrase is excluded.
        word_edges: As for `beam_search`.
        first_ids: As for `beam_search`.
        drop_finished: As for `beam_search`.
        prefix_ends: int32 `[batch, prefix_length, 2]`, for each position of a prefix
            a range of ranks `[start, end)`. A token with such a rank may replace the
            rest of the prefix. If `None`, prefixes are forced as they are.
        token_ranks: int32 `[vocabulary]`, the ranks of tokens by their spelling, if
            `prefix_ends` is given.
        is_checked: Whether rows are known to contain only padding after the end id.
        decoder: Steps of the model that an export has compiled. If `None`, those of
            `model`.

    Returns:
        `(sequences, scores)`: int32 `[batch, num_results, source_length +
        extra_length + prefix_length + places]`, including the end id, then padding;
        float32 `[batch, num_results]`, highest first. Slots without a translation have
        score minus infinity and contain only padding.

    Raises:
        ValueError: If `ids` and the model have different padding ids, or if a row of an
            array has no end id or padding before it. Rows of a tensor are not checked.

    Examples:
        >>> translator = kt.open_model("phrases")
        >>> tokenizer = translator.tokenizer
        >>> ids = [*tokenizer.tokenize(["12 euros"])[0].numpy(), tokenizer.end_id]
        >>> source_ids = keras.ops.convert_to_tensor([ids])
        >>> sequences, scores = kt.decoding.translate_ids(translator.model, source_ids)
        >>> tokenizer.detokenize(sequences[:, 0]).numpy()[0].decode()
        '12 Euro'
    """
    if not is_checked:
        source_ids = _cut_sources(source_ids, ids)
    constraints = prefix_ids, automaton, prefix_ends, token_ranks
    forced = [
        _num_tokens(given, ids.pad) > 0
        for given in (prefix_ids, required_ids)
        if given is not None
    ]
    return beam_search(
        **_begin(
            *(model, source_ids, search, search.beam_size, ids, constraints),
            *(drop_finished, decoder, required_ids, first_ids),
        ),
        search=search,
        n_best=n_best,
        vocabulary_size=vocabulary_size,
        num_results=num_results,
        required_ids=required_ids,
        word_edges=word_edges,
        first_ids=first_ids,
        is_forced=functools.reduce(ops.logical_or, forced) if forced else None,
    )


def sample_ids(
    model,
    source_ids,
    sampling=Sampling(),
    ids=SpecialIds(),
    prefix_ids=None,
    automaton=None,
    prefix_ends=None,
    token_ranks=None,
    vocabulary_size=None,
    drop_finished="auto",
    seed=None,
    is_checked=False,
    first_ids=None,
):
    """Draws translations of a batch of source ids at random, as for back-translation.

    The other arguments are the same as for `translate_ids`.

    Args:
        sampling: `Sampling`.
        seed: `keras.random.SeedGenerator` that replaces `sampling.seed`, or `None`.

    Returns:
        `(sequences, scores)`: int32 `[batch, num_samples, source_length +
        extra_length + prefix_length]`, including the end id, then padding; float32
        `[batch, num_samples]`, the log-probability of each sequence at temperature 1.

    Raises:
        ValueError: If `ids` and the model have different padding ids, or if a row of an
            array has no end id or padding before it. Rows of a tensor are not checked.

    Examples:
        >>> translator = kt.open_model("phrases")
        >>> tokenizer = translator.tokenizer
        >>> ids = [*tokenizer.tokenize(["12 euros"])[0].numpy(), tokenizer.end_id]
        >>> source_ids = keras.ops.convert_to_tensor([ids])
        >>> sequences, scores = kt.decoding.sample_ids(
        ...     translator.model, source_ids, kt.Sampling(num_samples=3, seed=1)
        ... )
        >>> print(scores.shape)
        (1, 3)
    """
    if not is_checked:
        source_ids = _cut_sources(source_ids, ids)
    constraints = prefix_ids, automaton, prefix_ends, token_ranks
    return sample(
        **_begin(
            *(model, source_ids, sampling, sampling.num_samples, ids, constraints),
            drop_finished,
        ),
        sampling=sampling,
        vocabulary_size=vocabulary_size,
        seed=seed,
        first_ids=first_ids,
    )


def _decoder_of(model, drop_finished):
    """Creates the decoder of a model or an ensemble."""
    build_models(model)
    if isinstance(model, Ensemble):
        return EnsembleDecoder(
            [_decoder_of(each, drop_finished) for each in model.models]
        )
    # The weights are arranged in advance only for dynamic shapes: with static shapes,
    # XLA would do this again at every step.
    return IncrementalDecoder(model, arrange_weights(model) if drop_finished else None)


def _begin(
    model,
    source_ids,
    settings,
    beam_size,
    ids,
    constraints,
    drop_finished,
    decoder=None,
    required_ids=None,
    first_ids=None,
):
    """Encodes sources and returns the arguments that beam search and sampling share.

    `settings` are a `BeamSearch` or a `Sampling`, `beam_size` is the number of
    hypotheses per sentence, and `constraints` are the last arguments of
    `ConstrainedDecoder`.
    """
    if getattr(model, "pad_id", ids.pad) != ids.pad:
        raise ValueError(
            "`ids.pad` must be the padding id of the model. Received: "
            f"ids.pad={ids.pad}, model.pad_id={model.pad_id}."
        )
    extra_length = settings.extra_length
    prefix_ids, automaton, *_ = constraints
    drop_finished = has_dynamic_shapes(drop_finished)
    decoder = decoder or _decoder_of(model, drop_finished)
    source_ids = ops.convert_to_tensor(source_ids, "int32")
    batch_size, source_length = shape(source_ids)
    lengths = _num_tokens(source_ids, ids.pad)
    max_length = lengths + extra_length
    if ratio := getattr(settings, "max_length_ratio", None):
        longest = ops.ceil(ratio * ops.cast(lengths, "float32"))
        max_length = ops.minimum(max_length, ops.cast(longest, "int32"))
    buffer_length = source_length + extra_length
    for given in (prefix_ids, required_ids):
        if given is not None:
            max_length = max_length + _num_tokens(given, ids.pad)
            buffer_length = buffer_length + shape(given)[1]
    if (limit := getattr(model, "position_limit", None)) is not None:
        max_length = ops.minimum(max_length, limit)
    # A source of one token contains only the end id, so its translation is empty.
    max_length = ops.where(lengths > 1, max_length, 0)
    # A growing cache has no unused slots. Like dropping finished sentences, it needs
    # dynamic shapes.
    capacity = None if drop_finished else first_capacity(batch_size, buffer_length)
    cache, context = decoder.begin(source_ids, beam_size, capacity)
    if isinstance(settings, BeamSearch) and settings.steering():
        decoder = SteeredDecoder(decoder, settings, beam_size, ids)
        cache, context = decoder.wrap(
            *(cache, context, source_ids, buffer_length, prefix_ids),
            *(required_ids, int(first_ids is not None)),
        )
    if prefix_ids is not None or automaton is not None:
        decoder = ConstrainedDecoder(decoder, beam_size, max_length, ids, *constraints)
        cache, context = decoder.wrap(cache, context, batch_size)
    return {
        "decoder": decoder,
        "cache": cache,
        "context": context,
        "batch_size": batch_size,
        "max_length": max_length,
        "buffer_length": buffer_length,
        "ids": ids,
        "drop_finished": drop_finished,
    }


def _cut_sources(source_ids, ids):
    """Returns sources without what follows the first end id of each row.

    Checks that other rows than empty ones have an end id, and no padding before it. A
    tensor is not checked, because its values may be unknown.
    """
    if not ops.is_tensor(source_ids):
        rows = np.array(source_ids)
        is_end = rows == (ids.end if ids.source_end is None else ids.source_end)
        before_end = np.cumsum(is_end, axis=1) == 0
        has_padding = np.any((rows == ids.pad) & before_end, axis=1)
        is_empty = np.all(rows == ids.pad, axis=1)
        if np.any(~is_empty & (has_padding | ~np.any(is_end, axis=1))):
            raise ValueError(
                "Each row of `source_ids` must have an end id, and padding only after "
                f"it. Received: {rows.tolist()!s:.80}, ids={ids}."
            )
    return cut_at_end(ops.convert_to_tensor(source_ids, "int32"), ids)[0]


def cut_at_end(source_ids, ids):
    """Replaces what follows the first end id of each row by padding.

    Returns the ids, int32 `[batch, source_length]`, and whether each row is empty or
    has an end id and no padding before it, bool `[batch]`.
    """
    end_id = ids.end if ids.source_end is None else ids.source_end
    is_end = ops.cast(source_ids == end_id, "int32")
    # Up to the first end id, no other end id has been counted.
    is_kept = ops.cumsum(is_end, axis=1) == is_end
    places = ops.arange(1, shape(source_ids)[1] + 1)
    end_places = ops.sum(is_end * ops.where(is_kept, places, 0), axis=1)
    source_ids = ops.where(is_kept, source_ids, ids.pad)
    return source_ids, _num_tokens(source_ids, ids.pad) == end_places


def _num_tokens(ids, pad_id):
    return ops.sum(ops.cast(ids != pad_id, "int32"), axis=1)
