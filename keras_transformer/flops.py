"""Floating-point operations of a model, counted from its matrix products."""

import numpy as np


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
