"""The paper's formulas in plain NumPy, in float64, for one sentence without padding.

The formulas follow the text of sections 3.1 to 3.5. The weights come from the argument
`layer`, `stack` or `model`. The only mask is the causal one: tests compare
each row of a padded batch with the result for its tokens alone.
"""

import math

import numpy as np


def array(weight):
    from keras import ops

    return np.asarray(ops.convert_to_numpy(weight), "float64")


def softmax(row):
    powers = np.exp(row - row.max())
    return powers / powers.sum()


def attention(query, key, value, causal=False):
    """Equation 1 for one head, query by query: `[queries, d_v]`."""
    output = np.zeros((len(query), value.shape[1]))
    for i, vector in enumerate(query):
        visible = i + 1 if causal else len(key)
        logits = key[:visible] @ vector / math.sqrt(key.shape[1])
        output[i] = softmax(logits) @ value[:visible]
    return output


def multi_head_attention(layer, query, value, causal=False):
    """Section 3.2.2 with the weights of `layer`, including any biases."""
    heads = []

    def project(dense, x):
        projected = x @ array(dense.kernel)
        return projected + array(dense.bias) if dense.use_bias else projected

    for head in range(layer.num_heads):

        def columns(dense, x):
            projected = project(dense, x)
            width = projected.shape[1] // layer.num_heads
            return projected[:, head * width : (head + 1) * width]  # noqa: B023

        heads.append(
            attention(
                columns(layer.query_dense, query),
                columns(layer.key_dense, value),
                columns(layer.value_dense, value),
                causal,
            )
        )
    return project(layer.output_dense, np.concatenate(heads, axis=1))


def feed_forward(layer, x):
    """Equation 2."""
    inner = x @ array(layer.inner_dense.kernel) + array(layer.inner_dense.bias)
    inner = np.maximum(0, inner)
    return inner @ array(layer.outer_dense.kernel) + array(layer.outer_dense.bias)


def layer_norm(layer, x, epsilon=1e-6):
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    normalized = (x - mean) / np.sqrt(variance + epsilon)
    return normalized * array(layer.gamma) + array(layer.beta)


def add_norm(layer, x, sublayer):
    """Residual connection and normalization (section 3.1) around `sublayer`."""
    if layer.normalization == "post":
        return layer_norm(layer.layer_norm, x + sublayer(x))
    return x + sublayer(layer_norm(layer.layer_norm, x))


def encoder_layer(layer, x):
    x = add_norm(
        layer.self_attention_add_norm,
        x,
        lambda y: multi_head_attention(layer.self_attention, y, y),
    )
    return add_norm(
        layer.feed_forward_add_norm, x, lambda y: feed_forward(layer.feed_forward, y)
    )


def decoder_layer(layer, x, encoder_output):
    x = add_norm(
        layer.self_attention_add_norm,
        x,
        lambda y: multi_head_attention(layer.self_attention, y, y, causal=True),
    )
    x = add_norm(
        layer.cross_attention_add_norm,
        x,
        lambda y: multi_head_attention(layer.cross_attention, y, encoder_output),
    )
    return add_norm(
        layer.feed_forward_add_norm, x, lambda y: feed_forward(layer.feed_forward, y)
    )


def stack(stack, x, layer_function, *args):
    for layer in stack.layers:
        x = layer_function(layer, x, *args)
    return x if stack.final_norm is None else layer_norm(stack.final_norm, x)


def positional_encoding(length, d_model, span=None, first=0):
    """Section 3.5, number by number.

    Args:
        length: Number of positions.
        d_model: Width of the vectors.
        span: Divisor of the exponents, by default `d_model`; `d_model - 2` gives the
            rates of tensor2tensor.
        first: Number of the first position.
    """
    table = np.zeros((length, d_model))
    for position in range(length):
        for i in range(0, d_model, 2):
            angle = (position + first) / 10000 ** (i / (span or d_model))
            table[position, i] = math.sin(angle)
            if i + 1 < d_model:
                table[position, i + 1] = math.cos(angle)
    return table


def embed(model, layer, ids):
    vectors = array(model.token_embedding.embeddings)[ids] * math.sqrt(model.d_model)
    if layer.kind == "learned":
        return vectors + array(layer.positions)[: len(ids)]
    return vectors + positional_encoding(len(ids), model.d_model)


def transformer(model, source_ids, target_ids):
    """Logits `[target_length, vocabulary_size]` of one pair of id lists."""
    x = embed(model, model.source_positions, source_ids)
    encoder_output = stack(model.encoder, x, encoder_layer)
    x = embed(model, model.target_positions, target_ids)
    x = stack(model.decoder, x, decoder_layer, encoder_output)
    return x @ array(model.token_embedding.embeddings).T
