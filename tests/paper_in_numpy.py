"""The paper's formulas in plain NumPy, in float64, for one sentence without padding.

The formulas follow the text of sections 3.1 to 3.5. Relative positions follow the code
of tensor2tensor, and rotary ones the complex numbers of Su et al. (2021). The weights
come from the argument `layer`, `stack` or `model`. The only mask is the causal one:
tests compare each row of a padded batch with the result for its tokens alone. Epsilons,
positions and embeddings of other toolkits come from a dict of `variations`, not from
the model.
"""

import math

import numpy as np


def array(weight):
    from keras import ops

    return np.asarray(ops.convert_to_numpy(weight), "float64")


def softmax(row):
    powers = np.exp(row - row.max())
    return powers / powers.sum()


def attention(query, key, value, causal=False, tables=None):
    """Equation 1 for one head, query by query: `[queries, d_v]`.

    `tables` are vectors of the distances -k to k, added to the keys and values.
    """
    output = np.zeros((len(query), value.shape[1]))
    for i, vector in enumerate(query):
        visible = i + 1 if causal else len(key)
        keys, values = key[:visible], value[:visible]
        if tables is not None:
            last = len(tables[0]) // 2
            distances = [max(-last, min(last, j - i)) for j in range(visible)]
            keys, values = (
                part + np.stack([table[distance + last] for distance in distances])
                for part, table in zip((keys, values), tables, strict=True)
            )
        logits = keys @ vector / math.sqrt(key.shape[1])
        output[i] = softmax(logits) @ values
    return output


def rotate(x):
    """Multiplies pairs of components, as complex numbers, by `e^(i pos theta)`."""
    numbers = x[:, 0::2] + 1j * x[:, 1::2]
    for position, row in enumerate(numbers):
        for pair in range(len(row)):
            theta = 10000 ** (-2 * pair / x.shape[1])
            row[pair] *= np.exp(1j * position * theta)
    return np.stack([numbers.real, numbers.imag], axis=-1).reshape(x.shape)


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

        queries = columns(layer.query_dense, query)
        keys = columns(layer.key_dense, value)
        if layer.positions == "rotary":
            queries, keys = rotate(queries), rotate(keys)
        tables = None
        if layer.positions == "relative":
            tables = array(layer.relative_keys), array(layer.relative_values)
        values = columns(layer.value_dense, value)
        heads.append(attention(queries, keys, values, causal, tables))
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


def add_norm(layer, x, sublayer, epsilon=1e-6):
    """Residual connection and normalization (section 3.1) around `sublayer`."""
    if layer.normalization == "post":
        return layer_norm(layer.layer_norm, x + sublayer(x), epsilon)
    return x + sublayer(layer_norm(layer.layer_norm, x, epsilon))


def encoder_layer(layer, x, epsilon=1e-6):
    def attend(y):
        return multi_head_attention(layer.self_attention, y, y)

    def transform(y):
        return feed_forward(layer.feed_forward, y)

    x = add_norm(layer.self_attention_add_norm, x, attend, epsilon)
    return add_norm(layer.feed_forward_add_norm, x, transform, epsilon)


def decoder_layer(layer, x, encoder_output, epsilon=1e-6):
    def attend(y):
        return multi_head_attention(layer.self_attention, y, y, causal=True)

    def attend_to_source(y):
        return multi_head_attention(layer.cross_attention, y, encoder_output)

    def transform(y):
        return feed_forward(layer.feed_forward, y)

    x = add_norm(layer.self_attention_add_norm, x, attend, epsilon)
    x = add_norm(layer.cross_attention_add_norm, x, attend_to_source, epsilon)
    return add_norm(layer.feed_forward_add_norm, x, transform, epsilon)


def stack(stack, x, layer_function, *args, epsilon=1e-6):
    for layer in stack.layers:
        x = layer_function(layer, x, *args, epsilon=epsilon)
    return x if stack.final_norm is None else layer_norm(stack.final_norm, x, epsilon)


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


def embed(model, side, ids, variations=None):
    """Sums of embeddings and positions of the ids of a side, "source" or "target"."""
    variations = variations or {}
    embedding = model.token_embedding
    if side == "source" and model.source_embedding is not None:
        embedding = model.source_embedding
    vectors = array(embedding.embeddings)[ids] * math.sqrt(model.d_model)
    if "zero_start_id" in variations:
        vectors[np.array(ids) == variations["zero_start_id"]] = 0.0
    layer = getattr(model, f"{side}_positions")
    if layer.kind == "learned":
        vectors = vectors + array(layer.positions)[: len(ids)]
    elif layer.kind == "sinusoidal":
        is_other = variations.get("timescales") == "tensor2tensor"
        vectors = vectors + positional_encoding(
            len(ids),
            model.d_model,
            span=model.d_model - 2 if is_other else None,
            first=variations.get("first_position", 0),
        )
    norm = getattr(model, f"{side}_norm")
    if norm is None:
        return vectors
    return layer_norm(norm, vectors, variations.get("layer_norm_epsilon", 1e-6))


def transformer(model, source_ids, target_ids, variations=None):
    """Logits `[target_length, vocabulary_size]` of one pair of id lists."""
    epsilon = (variations or {}).get("layer_norm_epsilon", 1e-6)
    x = embed(model, "source", source_ids, variations)
    encoder_output = stack(model.encoder, x, encoder_layer, epsilon=epsilon)
    x = embed(model, "target", target_ids, variations)
    x = stack(model.decoder, x, decoder_layer, encoder_output, epsilon=epsilon)
    output = model.token_embedding
    matrix = output.embeddings if output.tied else output.output_matrix
    logits = x @ array(matrix).T
    return logits + array(output.bias) if output.use_bias else logits
