"""Checks that another library can run a model."""

from keras_transformer.errors import ExportError
from keras_transformer.export.supported import check_exportable
from keras_transformer.numerics.activations import activation_name

# Logit bias of ids that the model does not predict.
EXCLUDED_BIAS = -1e9


def reject_quantized(model):
    """Raises `ExportError` if Keras has quantized the model.

    The kernels of a quantized model are integers that need the scales of their layers.
    """
    modes = {layer.quantization_mode for layer in model._flatten_layers()} - {None}
    if modes:
        raise ExportError(
            "a quantized model cannot be converted. Export the model before "
            f"`quantize`. Received: quantization_mode={', '.join(sorted(modes))}"
        )


def check_common_parts(model, library):
    """Checks that a model has only parts that Marian and transformers also have."""
    check_exportable(model)
    reject_quantized(model)
    attention = model.encoder.layers[0].self_attention
    head_dim = model.d_model // model.num_heads
    found = {
        "key_dim": (attention.key_dim, head_dim),
        "value_dim": (attention.value_dim or attention.key_dim, head_dim),
        "positions": (model.positions, "sinusoidal"),
        "attention_window": (model.attention_window, None),
        "score_mode": (model.score_mode, "scaled_dot"),
    }
    for name, (value, expected) in found.items():
        if value != expected:
            raise ExportError(
                f"{library} requires {name}={expected}. Received: {name}={value}"
            )


def supported_activation(model, activations, library):
    """Returns a library's name for the model's activation.

    `activations` maps Keras's names to the library's.
    """
    name = activation_name(model.activation)
    if name not in activations:
        raise ExportError(
            f"{library} needs one of the activations {', '.join(activations)}. "
            f"Received: {name!r}"
        )
    return activations[name]


def find_repeated(pieces):
    """Returns the first subword that occurs twice, or `None`."""
    seen = set()
    for piece in pieces:
        if piece in seen:
            return piece
        seen.add(piece)
    return None
