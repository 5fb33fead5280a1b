"""Export to a model folder for CTranslate2, a C++ inference engine."""

import pathlib

import keras
import numpy as np

from keras_transformer.decoding.ensemble import Ensemble
from keras_transformer.errors import ExportError
from keras_transformer.files import replace_folder

QUANTIZATIONS = ("none", "int8", "int16", "float16", "bfloat16", "int8_float32")
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH", "swish": "SWISH"}


def export_ctranslate2(
    model, tokenizer, folder, quantization="none", max_length=1024, replace=False
):
    """Writes a folder that `ctranslate2.Translator` opens.

    It contains CTranslate2's files and the tokenizer's. Tokens are the tokenizer's
    subwords. CTranslate2 adds the end of the sentence to the source. Log-probabilities
    match the model's. `Translator` never generates the unknown id; pass
    `disable_unk=True` to CTranslate2 for the same. CTranslate2 divides scores by
    len^alpha, which is `length_penalty_kind="power"` of this package.

    Args:
        model: `Transformer` with `key_dim` = `value_dim`.
        tokenizer: Tokenizer of source and target.
        folder: Folder to write. It appears once all files are on disk.
        quantization: Type of the weights, see `QUANTIZATIONS`. `"none"` is float32.
        max_length: Number of stored positions. CTranslate2 refuses longer sentences.
        replace: Whether to replace an existing folder.

    Returns:
        Path of the folder.

    Raises:
        ExportError: If CTranslate2 is not installed or cannot run the model, the model
            is an ensemble, the quantization is unknown, or the folder exists.
    """
    folder = pathlib.Path(folder)
    if isinstance(model, Ensemble):
        raise ExportError("an ensemble cannot be exported. Export one of its models.")
    if quantization not in QUANTIZATIONS:
        raise ExportError(
            f"quantization must be one of {', '.join(QUANTIZATIONS)}. "
            f"Received: {quantization}"
        )
    if folder.exists() and not replace:
        raise ExportError(f"{folder}: already exists")
    spec = _specification(model, max_length)
    tokens = tokenizer.pieces()
    # A padded vocabulary has rows without a subword.
    tokens += [f"<unused{n}>" for n in range(len(tokens), model.vocabulary_size)]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens[: model.output_size])
    spec.config.unk_token = tokens[tokenizer.unknown_id]
    spec.config.bos_token = spec.config.decoder_start_token = tokens[tokenizer.start_id]
    spec.config.eos_token = tokens[tokenizer.end_id]
    spec.config.add_source_eos = True
    norm = model.encoder.layers[0].feed_forward_add_norm
    spec.config.layer_norm_epsilon = norm.layer_norm_epsilon
    spec.validate()
    spec.optimize(quantization=None if quantization == "none" else quantization)
    with replace_folder(folder) as temporary:
        spec.save(str(temporary))
        tokenizer.save(temporary)
    return folder


def _specification(model, max_length):
    try:
        from ctranslate2.specs import common_spec
        from ctranslate2.specs import transformer_spec
    except ImportError:
        raise ExportError(
            "CTranslate2 is not installed: pip install ctranslate2"
        ) from None
    attention = model.encoder.layers[0].self_attention
    if attention.value_dim not in (None, attention.key_dim):
        raise ExportError(
            "CTranslate2 needs keys and values of one width. Received: "
            f"key_dim={attention.key_dim}, value_dim={attention.value_dim}"
        )
    if model.attention_window is not None:
        raise ExportError(
            "CTranslate2's encoder has no restricted self-attention. Received: "
            f"attention_window={model.attention_window}"
        )
    if model.score_mode != "scaled_dot":
        raise ExportError(f"CTranslate2 has no score function {model.score_mode!r}")
    activation = keras.activations.serialize(model.activation)
    if activation not in _ACTIVATIONS:
        raise ExportError(
            "CTranslate2 needs one of the activations "
            f"{', '.join(_ACTIVATIONS)}. Received: {activation!r}"
        )
    options = {
        "pre_norm": model.normalization == "pre",
        "activation": getattr(common_spec.Activation, _ACTIVATIONS[activation]),
    }
    if attention.key_dim * model.num_heads != model.d_model:
        options["head_dim"] = attention.key_dim
    sizes = model.num_layers, model.num_heads
    spec = transformer_spec.TransformerSpec(
        transformer_spec.TransformerEncoderSpec(*sizes, **options),
        transformer_spec.TransformerDecoderSpec(
            *sizes, alignment_layer=-1, alignment_heads=model.num_heads, **options
        ),
    )
    embeddings = _array(model.token_embedding.embeddings)
    spec.encoder.embeddings[0].weight = embeddings
    # A target contains only ids that can be predicted.
    targets = embeddings[: model.output_size]
    spec.decoder.embeddings.weight = targets
    spec.decoder.projection.weight = targets
    for part, ours, positions in (
        (spec.encoder, model.encoder, model.source_positions),
        (spec.decoder, model.decoder, model.target_positions),
    ):
        part.position_encodings.encodings = _positions(
            positions, max_length, model.d_model
        )
        if ours.final_norm is not None:
            _set_norm(part.layer_norm, ours.final_norm)
        for layer_spec, layer in zip(part.layer, ours.layers, strict=True):
            _set_layer(layer_spec, layer)
    return spec


def _set_layer(spec, layer):
    attention = layer.self_attention
    _set_linear(
        spec.self_attention.linear[0],
        attention.query_dense,
        attention.key_dense,
        attention.value_dense,
    )
    _set_linear(spec.self_attention.linear[1], attention.output_dense)
    _set_norm(spec.self_attention.layer_norm, layer.self_attention_add_norm.layer_norm)
    if hasattr(layer, "cross_attention"):
        attention = layer.cross_attention
        _set_linear(spec.attention.linear[0], attention.query_dense)
        _set_linear(
            spec.attention.linear[1], attention.key_dense, attention.value_dense
        )
        _set_linear(spec.attention.linear[2], attention.output_dense)
        _set_norm(spec.attention.layer_norm, layer.cross_attention_add_norm.layer_norm)
    _set_linear(spec.ffn.linear_0, layer.feed_forward.inner_dense)
    _set_linear(spec.ffn.linear_1, layer.feed_forward.outer_dense)
    _set_norm(spec.ffn.layer_norm, layer.feed_forward_add_norm.layer_norm)


def _set_linear(spec, *layers):
    """Sets a linear layer, `[outputs, inputs]`, to the concatenation of `layers`."""
    spec.weight = np.concatenate([_array(layer.kernel).T for layer in layers])
    if layers[0].use_bias:
        spec.bias = np.concatenate([_array(layer.bias) for layer in layers])


def _set_norm(spec, layer):
    spec.gamma, spec.beta = _array(layer.gamma), _array(layer.beta)


def _positions(layer, max_length, d_model):
    """Returns the positional encodings, `[max_length, d_model]`."""
    zeros = np.zeros((1, 1, d_model), np.float32)
    learned = layer.max_length if layer.kind == "learned" else max_length
    rows = _array(layer(np.repeat(zeros, min(learned, max_length), axis=1)))[0]
    # Like the layer, repeat the last learned position.
    return np.pad(rows, ((0, max_length - len(rows)), (0, 0)), mode="edge")


def _array(tensor):
    array = keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32"))
    return np.ascontiguousarray(array)
