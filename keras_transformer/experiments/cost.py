"""Floating-point operations of a model, counted from its matrix products."""

import time

import numpy as np
import tensorflow as tf

from keras_transformer import pipelines


def forward_flops(settings, vocabulary_size, source_lengths, target_lengths):
    """Operations of one forward pass over sentence pairs, padding not counted.

    A product of `[n, k]` and `[k, m]` counts 2 n k m. Norms, activations, softmaxes and
    embeddings are left out, as is the tanh of additive attention, whose scores count as
    dot products; a causal mask saves nothing.

    Args:
        settings: Mapping with `num_layers`, `d_model`, `d_ff`, `num_heads`, `key_dim`
            and `value_dim`, as in `PRESETS`, and perhaps `attention_window`.
        vocabulary_size: Rows of the tied embedding that make logits.
        source_lengths: Ids of each pair's source.
        target_lengths: Ids of each pair's target.

    Returns:
        Their number, a float.
    """
    d_model, d_ff = settings["d_model"], settings["d_ff"]
    keys = settings["num_heads"] * settings["key_dim"]
    values = settings["num_heads"] * settings["value_dim"]
    source = np.asarray(source_lengths, np.float64)
    target = np.asarray(target_lengths, np.float64)

    window = settings.get("attention_window") or np.inf

    def attention(queries, memory, window=np.inf):
        projections = queries * (keys + values) + memory * (keys + values)
        products = queries * np.minimum(memory, window) * (keys + values)
        return 2 * (d_model * projections + products).sum()

    def feed_forward(length):
        return 4 * d_model * d_ff * length.sum()

    encoder = attention(source, source, window) + feed_forward(source)
    decoder = attention(target, target, window) + attention(target, source)
    decoder += feed_forward(target)
    logits = 2 * d_model * vocabulary_size * target.sum()
    return float(settings["num_layers"] * (encoder + decoder) + logits)


def training_flops(settings, vocabulary_size, source_lengths, target_lengths):
    """Operations of training on pairs once: the backward pass is twice the forward.

    Arguments as `forward_flops`.
    """
    return 3 * forward_flops(settings, vocabulary_size, source_lengths, target_lengths)


def training_cost(recipe, model, corpus, progress, devices):
    """Floating-point operations of the whole training, counted and as in Table 2."""
    precision = recipe.training.mixed_precision or "float32"
    precision = precision.removeprefix("auto_")
    settings = {
        **recipe.model.constructor_arguments(),
        "key_dim": model.key_dim or model.d_model // model.num_heads,
        "value_dim": model.value_dim or model.d_model // model.num_heads,
    }
    rows = pipelines.epoch_rows(corpus)
    epoch = training_flops(
        settings,
        model.num_outputs,
        corpus.source_lengths[rows],
        corpus.target_lengths[rows],
    )
    steps = pipelines.steps_per_epoch(corpus, recipe.training.batch_tokens)
    counted = epoch * progress.step / steps
    rate = sustained_flops(precision=precision, at_once=recipe.training.parallel_parts)
    spent = progress.seconds * devices * rate
    return (
        f"{counted:.2e} operations counted; {spent:.2e} by time x {devices} device(s) "
        f"x {rate / 1e12:.2f} TFLOP/s, measured now in {precision}; "
        f"utilisation {counted / max(spent, 1.0):.0%}"
    )


def sustained_flops(size=2048, repeats=3, precision="float32", at_once=1):
    """Operations a second of a square matrix product on the default device.

    The paper takes a figure for each kind of GPU (footnote 5: 9.5 TFLOP/s for a P100);
    this one is measured, in a fraction of a second.

    Args:
        size: Rows and columns.
        repeats: The fastest of so many counts.
        precision: Dtype of the factors.
        at_once: Products side by side, as many as `TrainingModel.parallel_parts`,
            among which `use_threads` has shared out the cores.
    """
    lefts = tf.cast(tf.random.normal([at_once, size, size]), precision)
    right = tf.cast(tf.random.normal([size, size]), precision)

    @tf.function
    def products():
        # A number of each: it is there when the product is.
        return [tf.matmul(lefts[i], right)[0, 0] for i in range(at_once)]

    fastest = float("inf")
    for repeat in range(repeats + 1):
        start = time.perf_counter()
        for number in products():
            number.numpy()
        # The first compiles.
        if repeat:
            fastest = min(fastest, time.perf_counter() - start)
    return 2.0 * at_once * size**3 / fastest
