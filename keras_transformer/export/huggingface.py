"""Export to a folder that Hugging Face transformers reads.

Post-norm models become a `MarianMTModel`. Pre-norm models become a
`PegasusForConditionalGeneration`, its pre-norm counterpart.
"""

import json
import pathlib
import struct

import keras
import numpy as np

from keras_transformer.decoding.ensemble import Ensemble
from keras_transformer.errors import ExportError
from keras_transformer.export.model_card import describe_translator
from keras_transformer.files import replace_folder
from keras_transformer.saving.info import CARD

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
# Variations that can be exported. transformers ignores `layer_norm_epsilon`.
_VARIATIONS = (
    *("num_decoder_layers", "attention_bias", "logits_bias", "zero_start_id"),
    "layer_norm_epsilon",
)
# Bias of a logit that the softmax must ignore.
_NEVER = -1e9
# Positions that transformers stores; it rejects longer texts.
_MAX_POSITIONS = 1024
_NOTES = """## Differences

transformers computes almost the same results from these weights as keras_transformer.
The differences are:

- Layer normalizations add 1e-5 to the variance. In training it was {epsilon:g}.
- Scores are divided by length^{penalty:g}; the search of keras_transformer uses
  {kind} with alpha {penalty:g}.
- Texts with U+2581 or U+F8FE are split into different subwords. Spaces at both ends of
  a translation are removed.
"""


def export_huggingface(translator, folder, *, scores=(), license=None, dtype=None):
    """Writes a folder for `from_pretrained` of transformers and `MarianTokenizer`.

    Ids do not change. One id is appended, with the vector of the start id. transformers
    uses it as padding and as the start of the decoder. Its logit bias is -1e9, so that
    log-probabilities match this package. `generation_config.json` contains the search
    settings and the ids that a translation never contains.

    Args:
        translator: `Translator` from `open_model`.
        folder: Folder to write, which must not exist.
        scores: Scores for the card, see `model_card`.
        license: License for the card.
        dtype: `"float16"` for weights in half precision. If `None`, float32.

    Returns:
        Path of the folder.

    Raises:
        ExportError: If the folder exists, the model has parts that `MarianMTModel` and
            Pegasus lack, or the tokenizer is not BPE.
        StorageError: If the disk is full.
    """
    model, tokenizer = translator.model, translator.tokenizer
    _check(model, tokenizer)
    folder = pathlib.Path(folder)
    if folder.exists():
        raise ExportError(f"{folder}: already exists")
    tensors = _tensors(model, tokenizer)
    if dtype is not None:
        # Half precision lacks -1e9, the bias of ids that are never generated.
        largest = np.finfo(dtype).max
        tensors = {
            name: array.clip(-largest, largest).astype(dtype)
            for name, array in tensors.items()
        }
    search = translator.search
    notes = _NOTES.format(
        epsilon=model.encoder.layers[0].feed_forward_add_norm.layer_norm_epsilon,
        penalty=search.length_penalty,
        kind=search.length_penalty_kind,
    )
    card = f"{describe_translator(translator, scores, license)}\n{notes}"
    files = {
        "config.json": _config(model, tokenizer, dtype or "float32"),
        "generation_config.json": _generation_config(model, tokenizer, search),
        "tokenizer_config.json": _tokenizer_config(),
        "vocab.json": _vocabulary(tokenizer, model.vocabulary_size),
    }
    with replace_folder(folder) as temporary:
        write_safetensors(temporary / "model.safetensors", tensors)
        for name, content in files.items():
            text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            (temporary / name).write_text(text, encoding="utf-8")
        (temporary / "source.spm").write_bytes(tokenizer.model)
        (temporary / "target.spm").write_bytes(translator.target_tokenizer.model)
        (temporary / CARD).write_text(card, encoding="utf-8")
    return folder


def write_safetensors(path, tensors):
    """Writes a safetensors file.

    The layout is the header's length (uint64), the header (JSON: types, shapes and
    offsets), and the arrays in C order, all little-endian.

    Args:
        path: The file.
        tensors: Mapping of names to arrays of float32 or float16.
    """
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    types = {"float32": "F32", "float16": "F16"}
    for name, array in tensors.items():
        end = offset + array.nbytes
        header[name] = {
            "dtype": types[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    content = json.dumps(header).encode()
    content += b" " * (-len(content) % 8)  # aligned to 8 bytes
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(content)) + content)
        for array in tensors.values():
            file.write(
                np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"))
            )


def _check(model, tokenizer):
    """Raises `ExportError` unless transformers can compute the model."""
    if isinstance(model, Ensemble):
        raise ExportError("an ensemble cannot be exported. Export one of its models.")
    if tokenizer.kind not in ("bpe", "marian"):
        raise ExportError(
            "transformers' MarianTokenizer needs a SentencePiece model: tokenizer.kind "
            f"bpe, or marian of an imported model. Received: {tokenizer.kind}"
        )
    if tokenizer.kind == "marian":
        _check_marian(tokenizer)
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
                f"transformers needs {name} {expected} for this model. "
                f"Received: {name}={value}"
            )
    for name, value in model.variations.changes().items():
        if name not in _VARIATIONS:
            raise ExportError(
                f"transformers has no variation {name}. Received: {name}={value}"
            )
    activation = keras.activations.serialize(model.activation)
    if activation not in _ACTIVATIONS:
        raise ExportError(
            "transformers needs one of the activations "
            f"{', '.join(_ACTIVATIONS)}. Received: {activation!r}"
        )


def _check_marian(tokenizer):
    """Raises `ExportError` unless `MarianTokenizer` can represent the tokenizer."""
    if None in (tokenizer.model, tokenizer.target.model):
        raise ExportError("transformers' MarianTokenizer needs SentencePiece models")
    if tokenizer.pieces() != tokenizer.target.pieces():
        raise ExportError("source and target must share one vocabulary")
    for name in ("normalization", "language"):
        value = getattr(tokenizer, name)
        if value is not None:
            raise ExportError(
                f"transformers' MarianTokenizer has no {name}. Received: {value}"
            )


def _tensors(model, tokenizer):
    """Returns the arrays by their names in transformers.

    transformers stores all sines before all cosines, so the axis `d_model` of every
    array is permuted. Linear weights are `[outputs, inputs]`.
    """
    order = np.argsort(np.arange(model.d_model) % 2, kind="stable")
    embeddings = _array(model.token_embedding.embeddings)
    start = embeddings[tokenizer.start_id][None]
    variations = model.variations
    if variations.zero_start_id == tokenizer.start_id:
        start = np.zeros_like(start)
    tensors = {"model.shared.weight": np.concatenate([embeddings, start])[:, order]}
    bias = np.zeros((1, model.vocabulary_size + 1), np.float32)
    if variations.logits_bias:
        bias[0, : model.num_outputs] = _array(model.token_embedding.bias)
    bias[:, model.num_outputs :] = _NEVER
    tensors["final_logits_bias"] = bias
    for part, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for number, layer in enumerate(stack.layers):
            tensors |= _layer(f"model.{part}.layers.{number}", layer, order)
        if stack.final_norm is not None:
            tensors |= _norm(f"model.{part}.layer_norm", stack.final_norm, order)
            tensors[f"model.{part}.embed_positions.weight"] = _positions(model)[
                :, order
            ]
    return tensors


def _layer(name, layer, order):
    tensors = _attention(f"{name}.self_attn", layer.self_attention, order)
    norms = {"self_attn_layer_norm": layer.self_attention_add_norm}
    if hasattr(layer, "cross_attention"):
        tensors |= _attention(f"{name}.encoder_attn", layer.cross_attention, order)
        norms["encoder_attn_layer_norm"] = layer.cross_attention_add_norm
    norms["final_layer_norm"] = layer.feed_forward_add_norm
    for key, add_norm in norms.items():
        tensors |= _norm(f"{name}.{key}", add_norm.layer_norm, order)
    inner, outer = layer.feed_forward.inner_dense, layer.feed_forward.outer_dense
    tensors |= _linear(f"{name}.fc1", inner, inputs=order)
    return tensors | _linear(f"{name}.fc2", outer, outputs=order)


def _attention(name, attention, order):
    tensors = {}
    for key, dense in (
        ("q_proj", attention.query_dense),
        ("k_proj", attention.key_dense),
        ("v_proj", attention.value_dense),
    ):
        tensors |= _linear(f"{name}.{key}", dense, inputs=order)
    return tensors | _linear(f"{name}.out_proj", attention.output_dense, outputs=order)


def _linear(name, dense, inputs=slice(None), outputs=slice(None)):
    """Returns a layer's arrays, with inputs and outputs in the given orders."""
    kernel = _array(dense.kernel)
    bias = _array(dense.bias) if dense.use_bias else np.zeros_like(kernel[0])
    weight = kernel[inputs][:, outputs].T
    return {f"{name}.weight": weight, f"{name}.bias": bias[outputs]}


def _norm(name, layer, order):
    gamma, beta = _array(layer.gamma), _array(layer.beta)
    return {f"{name}.weight": gamma[order], f"{name}.bias": beta[order]}


def _positions(model):
    """Returns the sinusoids of all positions, `[positions, d_model]`."""
    zeros = np.zeros((1, _MAX_POSITIONS, model.d_model), np.float32)
    return _array(model.target_positions(zeros))[0]


def _array(tensor):
    return keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32"))


def _config(model, tokenizer, dtype):
    is_pre_norm = model.normalization == "pre"
    pad_id = model.vocabulary_size
    config = {
        "architectures": [
            "PegasusForConditionalGeneration" if is_pre_norm else "MarianMTModel"
        ],
        "model_type": "pegasus" if is_pre_norm else "marian",
        "is_encoder_decoder": True,
        "vocab_size": model.vocabulary_size + 1,
        "d_model": model.d_model,
        "activation_function": _ACTIVATIONS[
            keras.activations.serialize(model.activation)
        ],
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": 0.0,
        "scale_embedding": True,
        "max_position_embeddings": _MAX_POSITIONS,
        "pad_token_id": pad_id,
        "decoder_start_token_id": pad_id,
        "eos_token_id": tokenizer.end_id,
        "forced_eos_token_id": None,
        "torch_dtype": dtype,
    }
    if not is_pre_norm:
        config["decoder_vocab_size"] = model.vocabulary_size + 1
        config["share_encoder_decoder_embeddings"] = True
        config["static_position_embeddings"] = True
    for part, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        config[f"{part}_layers"] = len(stack.layers)
        config[f"{part}_ffn_dim"] = model.d_ff
        config[f"{part}_attention_heads"] = model.num_heads
    return config


def _generation_config(model, tokenizer, search):
    pad_id = model.vocabulary_size
    never = (tokenizer.pad_id, tokenizer.unknown_id, tokenizer.start_id, pad_id)
    return {
        "num_beams": search.beam_size,
        "length_penalty": search.length_penalty,
        # Like this package: until no better hypothesis is possible.
        "early_stopping": "never" if search.patience is None else True,
        "max_length": 512,
        "bad_words_ids": [[number] for number in never],
        "pad_token_id": pad_id,
        "decoder_start_token_id": pad_id,
        "eos_token_id": tokenizer.end_id,
    }


def _tokenizer_config():
    return {
        "tokenizer_class": "MarianTokenizer",
        "unk_token": "<unk>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "separate_vocabs": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": _MAX_POSITIONS,
    }


def _vocabulary(tokenizer, size):
    """Maps subwords to ids, with transformers' names of the special subwords."""
    pieces = tokenizer.pieces()
    # A padded vocabulary has rows without a subword.
    pieces += [f"<unused{number}>" for number in range(len(pieces), size)]
    pieces[tokenizer.pad_id] = "<padding>"
    pieces[tokenizer.unknown_id] = "<unk>"
    pieces[tokenizer.end_id] = "</s>"
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    vocabulary["<pad>"] = size
    if len(vocabulary) != size + 1:
        raise ExportError("the vocabulary contains a subword with a special name")
    return vocabulary
