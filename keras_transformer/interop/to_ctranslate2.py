"""Export to a model folder for CTranslate2, a C++ inference engine."""

import pathlib

import numpy as np

from keras_transformer.decoding.batches import select_target
from keras_transformer.errors import ExportError, install_hint
from keras_transformer.export.preset import check_exportable
from keras_transformer.files import replace_folder
from keras_transformer.interop.array_names import CTRANSLATE2_ACTIVATIONS
from keras_transformer.interop.supported import (
    find_repeated,
    reject_quantized,
    require_values,
    supported_activation,
)
from keras_transformer.interop.weights import position_vectors, to_numpy
from keras_transformer.untrusted import quote

QUANTIZATIONS = ("none", "int8", "int16", "float16", "bfloat16", "int8_float32")
# Logit bias of ids that the model does not predict, within the range of float16.
_EXCLUDED_BIAS = -10_000.0


def export_ctranslate2(
    model, tokenizer, folder, quantization="none", max_length=1024, replace=False
):
    """Writes a folder that `ctranslate2.Translator` can open.

    The folder contains CTranslate2's files and the tokenizer. CTranslate2 accepts and
    returns lists of subwords, and adds the end id to each source. Its
    log-probabilities match the model's. To exclude the unknown id, as `Translator`
    does, pass `disable_unk=True` to CTranslate2. CTranslate2 divides log-probabilities
    by `length^alpha`, as this package does with `length_penalty_kind="power"`.

    Args:
        model: `Transformer` with equal `key_dim` and `value_dim`.
        tokenizer: Source tokenizer. Its attribute `target` is the target tokenizer.
        folder: Folder to write. It appears once all files are on disk.
        quantization: Type of the weights: `"none"` (float32), `"int8"`, `"int16"`,
            `"float16"`, `"bfloat16"` or `"int8_float32"`.
        max_length: Number of positions to store. CTranslate2 rejects longer sentences.
        replace: Whether to replace an existing CTranslate2 export.

    Returns:
        Path of the folder.

    Raises:
        ExportError: If CTranslate2 is not installed or cannot run the model, the model
            is an ensemble, the quantization is unknown, `max_length` is below 1, a
            vocabulary contains a subword twice, or the folder exists and either
            `replace` is false or it is not a CTranslate2 export.

    Examples:
        >>> opened = kt.open_model("phrases")
        >>> path = kt.interop.export_ctranslate2(
        ...     opened.model, opened.tokenizer, "ctranslate2/phrases", "int8"
        ... )
    """
    folder = pathlib.Path(folder)
    check_exportable(model)
    reject_quantized(model)
    if quantization not in QUANTIZATIONS:
        raise ExportError(
            f"quantization must be one of {', '.join(QUANTIZATIONS)}. "
            f"Received: {quantization}"
        )
    if max_length < 1:
        raise ExportError(f"max_length must be at least 1. Received: {max_length}")
    _check_folder(folder, replace)
    target = select_target(tokenizer)
    # The decoder's vocabulary needs all ids that can be predicted, and the start id.
    num_targets = max(model.num_outputs, target.start_id + 1)
    spec = _specification(model, max_length, num_targets)
    tokens = _tokens(target, model.vocabulary_size)
    num_sources = _source_matrix(model).shape[0]
    spec.register_source_vocabulary(_tokens(tokenizer, num_sources))
    spec.register_target_vocabulary(tokens[:num_targets])
    spec.config.unk_token = tokens[target.unknown_id]
    spec.config.bos_token = spec.config.decoder_start_token = tokens[target.start_id]
    spec.config.eos_token = tokens[target.end_id]
    spec.config.add_source_eos = True
    norm = model.encoder.layers[0].feed_forward_add_norm
    spec.config.layer_norm_epsilon = norm.layer_norm_epsilon
    spec.validate()
    spec.optimize(quantization=None if quantization == "none" else quantization)
    with replace_folder(folder, must_be_new=not replace) as temporary:
        spec.save(str(temporary))
        tokenizer.save(temporary)
    return folder


def _check_folder(folder, replace):
    """Raises `ExportError` if `folder` exists and must not be replaced."""
    if not folder.exists():
        return
    if not replace:
        raise ExportError(f"{folder}: already exists. Choose another folder")
    if any(folder.iterdir()) and not (folder / "model.bin").is_file():
        raise ExportError(
            f"{folder}: is not a CTranslate2 export, because it contains no model.bin. "
            "Choose another folder"
        )


def _tokens(tokenizer, size):
    """Returns `size` subwords, with placeholders for ids that have none."""
    tokens = tokenizer.pieces()
    tokens += [f"<unused{number}>" for number in range(len(tokens), size)]
    # CTranslate2 would use the last id of a repeated subword, without a message.
    if repeated := find_repeated(tokens):
        raise ExportError(
            f"subwords must differ. Received: {quote(repeated)} more than once"
        )
    return tokens


def _source_matrix(model):
    return (model.source_embedding or model.token_embedding).embeddings


def _specification(model, max_length, num_targets):
    """Returns CTranslate2's description of the model, including its weights."""
    try:
        from ctranslate2.specs import common_spec, transformer_spec
    except ImportError:
        raise ExportError(
            f"ctranslate2 is not installed: {install_hint('ctranslate2')}"
        ) from None
    attention = model.encoder.layers[0].self_attention
    require_values(
        "CTranslate2",
        value_dim=(attention.value_dim or attention.key_dim, attention.key_dim),
        attention_window=(model.attention_window, None),
        score_mode=(model.score_mode, "scaled_dot"),
    )
    activation = supported_activation(model, CTRANSLATE2_ACTIVATIONS, "CTranslate2")
    options = {
        "pre_norm": model.normalization == "pre",
        "activation": getattr(common_spec.Activation, activation),
        "layernorm_embedding": model.variations.embedding_norm,
    }
    if model.positions == "relative":
        options["relative_position"] = True
    if model.positions == "rotary":
        options["rotary_dim"] = attention.key_dim
    if attention.key_dim * model.num_heads != model.d_model:
        options["head_dim"] = attention.key_dim
    heads = model.num_heads
    spec = transformer_spec.TransformerSpec(
        transformer_spec.TransformerEncoderSpec(model.num_layers, heads, **options),
        transformer_spec.TransformerDecoderSpec(
            len(model.decoder.layers),
            heads,
            alignment_layer=-1,
            alignment_heads=heads,
            **options,
        ),
    )
    _set_embeddings(spec, model, num_targets)
    for stack_spec, stack, positions, norm in (
        (spec.encoder, model.encoder, model.source_positions, model.source_norm),
        (spec.decoder, model.decoder, model.target_positions, model.target_norm),
    ):
        if norm is not None:
            _set_norm(stack_spec.layernorm_embedding, norm)
        # If positions are rotary, only the encoder has this, with zeros.
        if hasattr(stack_spec, "position_encodings"):
            stack_spec.position_encodings.encodings = position_vectors(
                positions, model.d_model, max_length
            )
        if stack.final_norm is not None:
            _set_norm(stack_spec.layer_norm, stack.final_norm)
        for layer_spec, layer in zip(stack_spec.layer, stack.layers, strict=True):
            _set_layer(layer_spec, layer)
    return spec


def _set_embeddings(spec, model, num_targets):
    """Sets the embeddings of both sides and the output projection."""
    embedding = model.token_embedding
    spec.encoder.embeddings[0].weight = _array(_source_matrix(model))
    targets = _array(embedding.embeddings)[:num_targets].copy()
    if embedding.zero_id is not None:
        targets[embedding.zero_id] = 0.0
    spec.decoder.embeddings.weight = targets
    matrix = _array(embedding.output_embeddings())
    missing = num_targets - len(matrix)
    spec.decoder.projection.weight = np.pad(matrix, ((0, missing), (0, 0)))
    if embedding.use_bias or missing:
        bias = _array(embedding.bias) if embedding.use_bias else np.zeros(len(matrix))
        bias = np.pad(bias, (0, missing), constant_values=_EXCLUDED_BIAS)
        spec.decoder.projection.bias = bias.astype(np.float32)


def _set_layer(spec, layer):
    attention = layer.self_attention
    _set_linear(
        spec.self_attention.linear[0],
        attention.query_dense,
        attention.key_dense,
        attention.value_dense,
    )
    _set_linear(spec.self_attention.linear[1], attention.output_dense)
    if attention.positions == "relative":
        spec.self_attention.relative_position_keys = _array(attention.relative_keys)
        spec.self_attention.relative_position_values = _array(attention.relative_values)
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


def _array(tensor):
    return np.ascontiguousarray(to_numpy(tensor))
