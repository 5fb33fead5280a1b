"""Checks that another library can run a model, and notes on what differs there."""

import collections

from keras_transformer.errors import ExportError
from keras_transformer.export.preset import check_exportable, reject_forbidden_phrases
from keras_transformer.numerics.activations import activation_name

# Logit bias of ids that the model does not predict.
EXCLUDED_BIAS = -1e9


def reject_quantized(model):
    """Raises `ExportError` if the kernels are integers, which need further scales."""
    modes = {layer.quantization_mode for layer in model._flatten_layers()} - {None}
    if modes:
        raise ExportError(
            "a quantized model cannot be converted. Export the model before "
            f"`quantize`. Received: quantization_mode={', '.join(sorted(modes))}"
        )


def check_model(translator, folder):
    """Checks that a model can be exported to a new folder."""
    reject_forbidden_phrases(translator)
    if folder.exists():
        raise ExportError(f"{folder}: already exists. Choose another folder")
    check_exportable(translator.model)
    reject_quantized(translator.model)


def check_translator(translator, folder, library, variations, activations):
    """Checks that a library, which supports the named `variations`, can run a model."""
    tokenizer = translator.tokenizer
    check_model(translator, folder)
    if tokenizer.kind not in ("bpe", "marian"):
        raise ExportError(
            f"{library} needs a SentencePiece model: tokenizer.kind must be bpe, or "
            f"marian if the model was imported. Received: {tokenizer.kind}"
        )
    check_architecture(translator.model, library, variations, activations)


def check_architecture(
    model, library, variations, activations, positions="sinusoidal", **expected
):
    """Raises `ExportError` for a model with other parts than a library supports.

    `variations` are those that the library supports with any value, and `expected` are
    values of others.
    """
    attention = model.encoder.layers[0].self_attention
    head_dim = model.d_model // model.num_heads
    require_values(
        library,
        key_dim=(attention.key_dim, head_dim),
        value_dim=(attention.value_dim or attention.key_dim, head_dim),
        positions=(model.positions, positions),
        attention_window=(model.attention_window, None),
        score_mode=(model.score_mode, "scaled_dot"),
        **{k: (getattr(model.variations, k), value) for k, value in expected.items()},
    )
    for name, value in model.variations.changes().items():
        if name not in variations and name not in expected:
            raise ExportError(
                f"{library} does not support {name}. Received: {name}={value}"
            )
    supported_activation(model, activations, library)


def require_values(library, **settings):
    """Raises `ExportError` unless the values, given as (found, expected), are equal."""
    for name, (value, expected) in settings.items():
        if value != expected:
            raise ExportError(
                f"{library} requires {name}={expected}. Received: {name}={value}"
            )


def supported_activation(model, activations, library):
    """Returns the model's activation by a library's names, `{Keras's: library's}`."""
    name = activation_name(model.activation)
    if name not in activations:
        raise ExportError(
            f"{library} needs one of the activations {', '.join(activations)}. "
            f"Received: {name!r}"
        )
    return activations[name]


def find_repeated(pieces):
    """Returns a subword that occurs twice, or `None`."""
    counts = collections.Counter(pieces)
    return next((piece for piece, count in counts.items() if count > 1), None)


def common_notes(translator, library, written=()):
    """Returns the notes of a model card that hold for Marian and for transformers.

    `written` are the names of search settings that the export contains.
    """
    notes, search = [], translator.search
    kind, alpha = search.length_penalty_kind, search.length_penalty
    if kind != "power" and alpha != 0:
        notes.append(
            f"{library} divides log-probabilities by length^{alpha:g}. "
            "keras_transformer divides them by the length penalty "
            f"{kind} with alpha {alpha:g}."
        )
    given = search.steering()
    if search.max_length_ratio is not None:
        given["max_length_ratio"] = search.max_length_ratio
    given = [f"{k}={value:g}" for k, value in given.items() if k not in written]
    if given:
        given = ", ".join(given)
        notes.append(f"The export does not contain the search settings {given}.")
    if translator.tokenizer.kind == "bpe":
        notes.append(
            "Texts that contain U+2581 or U+F8FE are tokenized differently than in "
            "keras_transformer."
        )
    return notes
