"""Low-rank adapters (Hu et al., 2021), which train few weights of a large model."""

import keras

from keras_transformer.layers.base import Dense, inner_layers


def add_adapters(model, rank, alpha, layers, seed=0):
    """Freezes a built model and adds trainable adapters to its projections.

    A kernel W becomes `W + alpha / rank * A B` (section 4.1), with A `[inputs, rank]`
    and B `[rank, outputs]`. B begins with zeros, so the model's outputs stay the same.
    Keras adds the product to W when it saves the model.

    Args:
        model: A built `Transformer`, or another layer.
        rank: Number of columns of A and rows of B.
        alpha: Factor on the product, which is divided by `rank`.
        layers: Names of the projections: `"query"`, `"key"`, `"value"` and `"output"`
            of all attentions, `"inner"` and `"outer"` of the feed-forward networks.
        seed: Seed of the initial values of A.
    """
    for weight in model.weights:
        weight.trainable = False
    for index, layer in enumerate(_projections(model, layers)):
        initializer = keras.initializers.HeUniform(seed + index)
        layer.enable_lora(rank, lora_alpha=alpha, a_initializer=initializer)


def count_adapter_weights(model, rank, layers):
    """Returns the number of weights that `add_adapters` would add."""
    return rank * sum(sum(each.kernel.shape) for each in _projections(model, layers))


def merge_adapters(model, merged):
    """Adds the products of a model's adapters to an equal model without adapters."""
    for ours, theirs in zip(_projections(model), _projections(merged), strict=True):
        theirs.kernel.assign(ours.kernel)


def adapter_weights(model):
    """Returns the weights of a model's adapters, empty without adapters."""
    return [each for each in model.weights if each.name.startswith("lora_")]


def _projections(model, names=None):
    """Yields a model's `Dense` layers, or those with given names."""
    for _, layer, _ in inner_layers(model):
        if isinstance(layer, Dense) and (names is None or layer.name in names):
            yield layer
