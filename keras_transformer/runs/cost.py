"""Training cost in floating-point operations."""

import numpy as np

from keras_transformer import pipelines
from keras_transformer.arguments import with_head_dims


def forward_flops(settings, vocabulary_size, source_lengths, target_lengths):
    """Counts the operations of one forward pass over sentence pairs.

    A product of `[n, k]` and `[k, m]` counts as 2nkm operations. Padding, norms,
    activations, softmaxes and embeddings are not counted. Additive attention counts as
    dot-product attention, and a causal mask does not reduce the count.

    Args:
        settings: A mapping with `num_layers`, `d_model`, `d_ff`, `num_heads`, `key_dim`
            and `value_dim`, as in `SIZES`, and optionally `attention_window` and
            `variations`.
        vocabulary_size: Number of ids that the model predicts, one logit each.
        source_lengths: Number of source ids of each pair, int array `[pairs]`.
        target_lengths: Number of target ids of each pair, int array `[pairs]`.

    Returns:
        The number of floating-point operations, float.

    Examples:
        >>> flops = kt.runs.forward_flops(kt.SIZES["base"], 37_000, [25], [25])
        >>> f"{flops:.2e}"
        '3.17e+09'
    """
    d_model, d_ff = settings["d_model"], settings["d_ff"]
    # Width of the keys and the values of all heads together.
    width = settings["num_heads"] * (settings["key_dim"] + settings["value_dim"])
    source = np.asarray(source_lengths, np.float64)
    target = np.asarray(target_lengths, np.float64)
    window = settings.get("attention_window") or np.inf

    def attention(num_queries, num_keys, window=np.inf):
        # Each query has a query projection (of key width) and an output projection (of
        # value width). Each key has a key projection and a value projection. Over all
        # heads, the widths of either pair add up to `width`.
        projections = (num_queries + num_keys) * width
        products = num_queries * np.minimum(num_keys, window) * width
        return 2 * (d_model * projections + products).sum()

    def feed_forward(length):
        return 4 * d_model * d_ff * length.sum()

    encoder = attention(source, source, window) + feed_forward(source)
    decoder = attention(target, target, window) + attention(target, source)
    decoder += feed_forward(target)
    logits = 2 * d_model * vocabulary_size * target.sum()
    num_layers = settings["num_layers"]
    variations = settings.get("variations") or {}
    num_decoder_layers = variations.get("num_decoder_layers") or num_layers
    return float(num_layers * encoder + num_decoder_layers * decoder + logits)


def training_flops(settings, vocabulary_size, source_lengths, target_lengths):
    """Counts the operations of a training step, three times `forward_flops`.

    The backward pass costs as much as two forward passes. The arguments are those of
    `forward_flops`.

    Returns:
        The number of floating-point operations, float.

    Examples:
        >>> flops = kt.runs.training_flops(kt.SIZES["base"], 37_000, [25], [25])
        >>> f"{flops:.2e}"
        '9.52e+09'
    """
    return 3 * forward_flops(settings, vocabulary_size, source_lengths, target_lengths)


def count_run_flops(recipe, settings, num_outputs, corpora, progress):
    """Counts the floating-point operations of a run, summed over its stages.

    The steps of the recipe are counted, in proportion to the target tokens that they
    would have and those that were trained. The two differ if steps were skipped, or if
    the text or the batches were changed during the run. `corpora` has one
    `EncodedCorpus` per stage.
    """
    from keras_transformer.pipelines.datasets import epoch_rows

    total = tokens = 0.0
    for stage, corpus in zip(recipe.stages, corpora, strict=True):
        lengths = corpus.lengths(epoch_rows(corpus))
        epoch = training_flops(settings, num_outputs, *lengths)
        if stage.settings.consistency is not None:
            epoch *= 2  # the model processes each batch twice
        epoch_steps = pipelines.steps_per_epoch(corpus, stage.settings.batch_tokens)
        done = max(0, min(progress.step, stage.end) - stage.start) / epoch_steps
        total += epoch * done
        tokens += lengths[1].sum() * done
    return total * progress.tokens / max(tokens, 1.0)


def training_cost(recipe, model, corpora, progress, devices):
    """Describes the training cost of a run, and the rate achieved, as text."""
    settings = with_head_dims(model.get_config())
    cost = count_run_flops(recipe, settings, model.num_outputs, corpora, progress)
    rate = cost / max(progress.seconds, 1e-9) / devices
    return f"{cost:.2e} FLOP, {rate / 1e12:.2g} TFLOP/s per device"
