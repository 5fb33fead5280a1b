"""Import of a folder in Marian's format, such as an OPUS-MT model.

By default, scores match `marian-scorer` (see docs/how-to/import-a-marian-model.md).
"""

import pathlib
import re

import numpy as np

from keras_transformer.conversion import weights
from keras_transformer.conversion.array_names import (
    MARIAN_SETTINGS,
    marian_names,
    marian_norm_names,
)
from keras_transformer.conversion.arrays import Arrays, read_npz
from keras_transformer.conversion.imported import (
    ENGINE_VARIATIONS,
    ImportedModel,
    choose_engine,
    model_arguments,
)
from keras_transformer.conversion.marian_folder import (
    MAX_YAML_BYTES,
    convert_search_settings,
    find_weights,
    parse_settings,
    read_decoder_settings,
    read_license_file,
    read_marian_tokenizer,
    read_marian_vocabularies,
)
from keras_transformer.errors import ModelError
from keras_transformer.untrusted import shorten

# The layers of a model with tied layers need no weights of their own in the file.
_MAX_TIED_LAYERS = 100
_ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "gelu"}
# Settings that must have one of these values if they are given.
_REQUIRED = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-attention-mask": ("default",),
    "lemma-dim-emb": (0,),
    **dict.fromkeys(
        (
            *("transformer-no-projection", "transformer-no-bias", "right-left"),
            *("transformer-no-affine", "transformer-disable-position-embeddings"),
            *("transformer-train-position-embeddings", "ulr", "transformer-pool"),
        ),
        (False,),
    ),
}


def import_marian(path, engine=None, language=None, normalization=None):
    """Imports a Marian model.

    Args:
        path: Folder of the model, or the `decoder.yml` in it.
        engine: `"marian"` or `"huggingface"`, the engine whose results the model
            reproduces. If `None`, `"marian"` is used.
        language: Target language of a multilingual model (see `MarianTokenizer`).
        normalization: `"opus"` to normalize texts as OPUS-MT does, or `None`.

    Returns:
        `ImportedModel`.

    Raises:
        ModelError: If files are missing or damaged, or the model is of a kind that is
            not supported.
        DataError: If the tokenizer cannot be read.
    """
    engine = choose_engine(engine, "marian")
    folder, decoder = read_decoder_settings(pathlib.Path(path))
    file = find_weights(folder, decoder)
    limits = {MARIAN_SETTINGS: MAX_YAML_BYTES}
    arrays = Arrays(file, read_npz(file, limits), ignored=(MARIAN_SETTINGS,))
    settings = _model_settings(arrays)
    _check_supported(file, settings)
    sizes = _vocabulary_sizes(file, settings)
    tied = _tied_layers(file, settings)
    vocabularies = read_marian_vocabularies(folder, decoder, sizes)
    _check_vocabularies(arrays, vocabularies, sizes)
    tokenizer = read_marian_tokenizer(folder, vocabularies, language, normalization)
    arguments, card_rows = _arguments(arrays, settings, tokenizer, engine)
    model = weights.build_transformer(arguments, arrays, len(set(tied)))
    _set_weights(model, arrays, settings, vocabularies, tied)
    arrays.check_all_used()
    card_rows = {
        "imported from": f"Marian, {file.name}",
        "log-probabilities match": _ENGINE_NAMES[engine],
        **card_rows,
    }
    if num_missing := vocabularies[1].num_ids - len(vocabularies[1].ids):
        card_rows["ids without a piece"] = f"{num_missing:,}, omitted from the softmax"
    if tied:
        card_rows["tied decoder layers"] = (
            f"{' '.join(map(str, tied))}, stored as copies; fine-tuning unties them"
        )
    search, license = convert_search_settings(decoder), read_license_file(folder)
    return ImportedModel(model, tokenizer, search, card_rows, license)


# Values of the row "log-probabilities match" in the model card.
_ENGINE_NAMES = {
    "marian": "Marian, except for float rounding",
    "huggingface": "Hugging Face's MarianMTModel, not Marian",
}


def _model_settings(arrays):
    if MARIAN_SETTINGS not in arrays:
        raise ModelError(
            f"{arrays.path}: must be a model that Marian has written, with the "
            f"settings in {MARIAN_SETTINGS}"
        )
    # Marian terminates the YAML text with a zero byte, newer versions with several.
    content = arrays.raw(MARIAN_SETTINGS).tobytes().rstrip(b"\0")
    return parse_settings(f"{arrays.path}, {MARIAN_SETTINGS}", content)


def _check_supported(file, settings):
    """Raises a `ModelError` for models that this package cannot run."""

    def refuse(name, received):
        raise ModelError(
            f"{file}: models with {name}: {shorten(received)} cannot be imported. Only "
            "post-norm Transformers with self-attention in the decoder are supported"
        )

    for name, allowed in _REQUIRED.items():
        if settings.get(name, allowed[0]) not in allowed:
            refuse(name, settings[name])
    types = settings.get("input-types", [])
    # Alignments and weights are columns of the training text. The model ignores them.
    if not isinstance(types, list) or [
        each for each in types if each not in ("alignment", "weight")
    ] not in ([], ["sequence", "sequence"]):
        raise ModelError(
            f"{file}: models with input-types: {shorten(types)} cannot be imported. "
            "Only models from one text to another are supported"
        )
    for name, order in (
        ("preprocess", ""),
        ("postprocess", "an"),
        ("postprocess-top", ""),
    ):
        # The letters are dropout (d), addition (a), and normalization (n). Dropout does
        # not change inference.
        value = settings.get(f"transformer-{name}", order)
        if not isinstance(value, str) or value.replace("d", "") != order:
            refuse(f"transformer-{name}", value)
    width = settings.get("transformer-decoder-dim-ffn", 0)
    if width not in (0, settings.get("transformer-dim-ffn")):
        raise ModelError(
            f"{file}: encoder and decoder must have feed-forward networks of the same "
            f"width. Received: transformer-dim-ffn: "
            f"{shorten(settings.get('transformer-dim-ffn'))}, "
            f"transformer-decoder-dim-ffn: {shorten(width)}"
        )
    if settings.get("transformer-ffn-activation", "swish") not in tuple(_ACTIVATIONS):
        refuse("transformer-ffn-activation", settings["transformer-ffn-activation"])


def _tied_layers(file, settings):
    """Returns the decoder layer in the file whose weights each layer has.

    Layers count from 1. The list is empty if each layer has its own weights.
    """
    tied, depth = settings.get("transformer-tied-layers", []), settings.get("dec-depth")
    if tied != [] and not (
        isinstance(tied, list)
        and len(tied) == depth <= _MAX_TIED_LAYERS
        and all(type(number) is int and number > 0 for number in tied)
    ):
        raise ModelError(
            f"{file}: transformer-tied-layers must have the number of a layer for each "
            f"layer of the decoder, at most {_MAX_TIED_LAYERS}. Received: "
            f"{shorten(tied)}, dec-depth: {shorten(depth)}"
        )
    return tied


def _vocabulary_sizes(file, settings):
    """Returns the sizes of source and target in `dim-vocabs`, 0 if unknown."""
    sizes = settings.get("dim-vocabs") or [0, 0]
    if (
        not isinstance(sizes, list)
        or len(sizes) < 2
        or not all(type(size) is int and size >= 0 for size in sizes)
    ):
        raise ModelError(
            f"{file}: dim-vocabs must be the sizes of two vocabularies. Received: "
            f"{shorten(sizes)}"
        )
    return sizes[:2]


def _check_vocabularies(arrays, vocabularies, sizes):
    """Raises a `ModelError` unless the vocabularies match the embeddings."""
    if "Wemb" in arrays:
        # The longer vocabulary selects rows of the shared matrix for both sides.
        shorter, longer = sorted(vocabularies, key=lambda each: len(each.ids))
        if longer.ids[: len(shorter.ids)] != shorter.ids:
            raise ModelError(
                f"{shorter.file}: must have the ids of {longer.file.name}, because "
                "source and target share their embeddings"
            )
        matrices = {"Wemb": max(vocabularies, key=lambda each: each.num_ids)}
    else:
        names = ("encoder_Wemb", "decoder_Wemb")
        matrices = dict(zip(names, vocabularies, strict=True))
    for name, (file, _, ids, num_ids) in matrices.items():
        shape = arrays.shape(name)
        if shape[:1] != (num_ids,):
            raise ModelError(
                f"{file}: has ids up to {ids[-1]:,}, and dim-vocabs is {sizes}. So "
                f"{name} must have {num_ids:,} rows. Received shape: {list(shape)}"
            )


def _arguments(arrays, settings, tokenizer, engine):
    """Returns the arguments of `Transformer`, and rows of the model card."""

    def number(name):
        value = settings.get(name)
        if type(value) is not int:
            raise ModelError(
                f"{arrays.path}: {name} must be an integer in {MARIAN_SETTINGS}"
            )
        return value

    is_symmetric = number("dec-depth") == number("enc-depth")
    changes = {
        **ENGINE_VARIATIONS[engine],
        "num_decoder_layers": None if is_symmetric else number("dec-depth"),
        "attention_bias": True,
        "logits_bias": "decoder_ff_logit_out_b" in arrays,
        "zero_start_id": tokenizer.start_id,
        "embedding_norm": "n" in str(settings.get("transformer-postprocess-emb", "")),
        "tied_output": _output_name(arrays, settings) is None,
    }
    if "Wemb" not in arrays:
        changes["source_vocabulary_size"] = tokenizer.vocabulary_size
    activation = _ACTIVATIONS[settings.get("transformer-ffn-activation", "swish")]
    if activation == "gelu" and engine == "marian" and _is_before_2023_03(settings):
        activation = "quick_gelu"
    arguments = model_arguments(
        arrays.path,
        {
            "num_layers": number("enc-depth"),
            "d_model": number("dim-emb"),
            "d_ff": number("transformer-dim-ffn"),
            "num_heads": number("transformer-heads"),
            "activation": activation,
        },
        tokenizer,
        changes,
    )
    version = " ".join(str(settings.get("version", "unknown")).split())
    return arguments, {"written by": f"Marian {version:.80}", "activation": activation}


def _is_before_2023_03(settings):
    """Returns whether a version of Marian from before March 2023 wrote the file.

    These versions compute GELU as `x * sigmoid(1.702 x)`.
    """
    date = re.search(r"\b(20\d\d)-(\d\d)-\d\d\b", str(settings.get("version", "")))
    return date is not None and (date[1], date[2]) < ("2023", "03")


def _output_name(arrays, settings):
    """Returns the name of the output matrix, or `None` if it is tied."""
    if settings.get("tied-embeddings") or settings.get("tied-embeddings-all"):
        return None
    # Very old files store the matrix as `[d_model, outputs]`, under this name.
    old = "decoder_ff_logit_out_W"
    return old if old in arrays else "decoder_ff_logit_out_Wt"


def _set_weights(model, arrays, settings, vocabularies, tied):
    width = model.d_model
    source_ids, ids = (np.array(each.ids) for each in vocabularies)
    num_sources, num_ids = (each.num_ids for each in vocabularies)
    source = output = bias = None
    # Source and target embeddings are one matrix, Wemb, or two matrices.
    if "Wemb" in arrays:
        target = arrays.take("Wemb", (max(num_sources, num_ids), width))
        target = target[max(source_ids, ids, key=len)]
    else:
        source = arrays.take("encoder_Wemb", (num_sources, width))[source_ids]
        target = arrays.take("decoder_Wemb", (num_ids, width))[ids]
    name = _output_name(arrays, settings)
    if name is not None:
        is_old = name.endswith("W")
        output = arrays.take(name, (width, num_ids) if is_old else (num_ids, width))
        output = (output.T if is_old else output)[ids]
    if model.variations.logits_bias:
        bias = arrays.take("decoder_ff_logit_out_b", (1, num_ids))[0, ids]
    weights.set_embeddings(model, source, target, output, bias)
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        numbers = tied if side == "decoder" else []
        weights.set_layers(stack, _layer_reader(arrays, side, numbers))
    for side, norm in (("encoder", model.source_norm), ("decoder", model.target_norm)):
        if norm is not None:
            names = marian_norm_names(side)
            weights.set_norm(
                norm, *(arrays.take(name, (1, width))[0] for name in names)
            )


def _layer_reader(arrays, side, tied):
    """Returns the argument `read` of `set_layers`, for Marian's array names."""

    def read(number, part, shape):
        number = tied[number] - 1 if tied else number
        weight, bias = marian_names(side, number, part)
        vector = arrays.take(bias, (1, shape[-1]))[0]
        if len(shape) == 1:  # the scale of a layer normalization
            return arrays.take(weight, (1, *shape))[0], vector
        return arrays.take(weight, shape), vector

    return read
