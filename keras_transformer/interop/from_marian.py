"""Import of a folder in Marian's format, such as an OPUS-MT model.

By default, scores match `marian-scorer` (see docs/how-to/import-a-marian-model.md).
"""

import os
import pathlib
import re
from typing import NamedTuple

import numpy as np

from keras_transformer.errors import DataError, ModelError, RecipeError
from keras_transformer.interop import weights
from keras_transformer.interop.array_names import (
    MARIAN_ACTIVATIONS,
    MARIAN_ARRAYS,
    MARIAN_SETTINGS,
    marian_names,
    marian_norm_names,
)
from keras_transformer.interop.arrays import Arrays, read_npz
from keras_transformer.interop.imported import (
    ENGINE_VARIATIONS,
    ImportedModel,
    check_number,
    choose_engine,
    model_arguments,
)
from keras_transformer.interop.vocabularies import read_entries
from keras_transformer.pipelines.tokenizers.model_check import MAX_MODEL_BYTES
from keras_transformer.recipes.yaml_values import read_yaml
from keras_transformer.untrusted import read_bytes, require_regular, shorten

# The layers of a model with tied layers need no weights of their own in the file.
_MAX_TIED_LAYERS = 100
_NAMES = MARIAN_ARRAYS
# Marian's names of activations, and this package's names.
_ACTIVATIONS = {theirs: ours for ours, theirs in MARIAN_ACTIVATIONS.items()}
# Maximum size of YAML settings in bytes. Marian writes about 2,000.
_MAX_YAML_BYTES = 1 << 16
_SUBWORD_NMT = (
    "subwords of subword-nmt (with @@) are not supported. Use a model with "
    "SentencePiece"
)
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
    folder, decoder = _read_decoder_settings(pathlib.Path(path))
    file = _find_weights(folder, decoder)
    limits = {MARIAN_SETTINGS: _MAX_YAML_BYTES}
    arrays = Arrays(file, read_npz(file, limits), ignored=(MARIAN_SETTINGS,))
    settings = _model_settings(arrays)
    _check_supported(file, settings)
    sizes = _vocabulary_sizes(file, settings)
    tied = _tied_layers(file, settings)
    vocabularies = _read_vocabularies(folder, decoder, sizes)
    _check_vocabularies(arrays, vocabularies, sizes)
    tokenizer = _read_tokenizer(folder, vocabularies, language, normalization)
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
    search, license = _search_settings(decoder), _read_license(folder)
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
    return _parse_settings(f"{arrays.path}, {MARIAN_SETTINGS}", content)


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
    if _NAMES["shared"] in arrays:
        # The longer vocabulary selects rows of the shared matrix for both sides.
        shorter, longer = sorted(vocabularies, key=lambda each: len(each.ids))
        if longer.ids[: len(shorter.ids)] != shorter.ids:
            raise ModelError(
                f"{shorter.file}: must have the ids of {longer.file.name}, because "
                "source and target share their embeddings"
            )
        matrices = {_NAMES["shared"]: max(vocabularies, key=lambda each: each.num_ids)}
    else:
        names = (_NAMES["source"], _NAMES["target"])
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
        "logits_bias": _NAMES["bias"] in arrays,
        "zero_start_id": tokenizer.start_id,
        "embedding_norm": "n" in str(settings.get("transformer-postprocess-emb", "")),
        "tied_output": _output_name(arrays, settings) is None,
    }
    if _NAMES["shared"] not in arrays:
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
    return old if old in arrays else _NAMES["output"]


def _set_weights(model, arrays, settings, vocabularies, tied):
    width = model.d_model
    source_ids, ids = (np.array(each.ids) for each in vocabularies)
    num_sources, num_ids = (each.num_ids for each in vocabularies)
    source = output = bias = None
    # Source and target embeddings are one matrix, Wemb, or two matrices.
    if _NAMES["shared"] in arrays:
        target = arrays.take(_NAMES["shared"], (max(num_sources, num_ids), width))
        target = target[max(source_ids, ids, key=len)]
    else:
        source = arrays.take(_NAMES["source"], (num_sources, width))[source_ids]
        target = arrays.take(_NAMES["target"], (num_ids, width))[ids]
    name = _output_name(arrays, settings)
    if name is not None:
        is_old = name.endswith("W")
        output = arrays.take(name, (width, num_ids) if is_old else (num_ids, width))
        output = (output.T if is_old else output)[ids]
    if model.variations.logits_bias:
        bias = arrays.take(_NAMES["bias"], (1, num_ids))[0, ids]
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


def _parse_settings(label, content):
    """Parses a mapping of settings from YAML."""
    if len(content) > _MAX_YAML_BYTES:
        raise ModelError(f"{label}: must have at most {_MAX_YAML_BYTES:,} bytes")
    try:
        settings = read_yaml(content.decode("utf-8"))
    except (RecipeError, UnicodeDecodeError) as error:
        raise ModelError(f"{label}: {shorten(error)}") from None
    if not isinstance(settings, dict):
        raise ModelError(f"{label}: must be a mapping of settings")
    return settings


def _read_decoder_settings(path):
    """Returns the folder, and the settings in its `decoder.yml`.

    The key `path` is added to the settings, with the path of `decoder.yml`.
    """
    if path.is_file():
        if path.suffix not in (".yml", ".yaml"):
            raise ModelError(
                f"{path}: must be the folder of a model, or its decoder.yml. Import "
                f"{path.parent}"
            )
        folder, file = path.parent, path
    else:
        folder = path
        found = sorted(folder.glob("*decoder.yml"))
        plain = [each for each in found if each.name == "decoder.yml"]
        if len(plain or found) != 1:
            names = ", ".join(each.name for each in found) or "none"
            raise ModelError(
                f"{folder}: must contain one decoder.yml of Marian, or a config.json "
                f"of Hugging Face. Received: {names}"
            )
        file = (plain or found)[0]
    settings = _parse_settings(file, read_bytes(file, _MAX_YAML_BYTES, ModelError))
    return folder, {**settings, "path": file}


def _find_weights(folder, decoder):
    """Returns the path of the `.npz` file with the weights."""
    path = _find_file(folder, _file_names(decoder, "models", 1)[0])
    if path.suffix != ".npz":
        raise ModelError(
            f"{path}: only .npz files can be imported, not quantized .bin files"
        )
    require_regular([path], ModelError)
    return path


def _file_names(decoder, key, count):
    """Returns the `count` file names in a setting of `decoder.yml`."""
    names = decoder.get(key)
    if (
        not isinstance(names, list)
        or len(names) != count
        or not all(isinstance(name, str) for name in names)
    ):
        raise ModelError(
            f"{decoder['path']}: {key} must name {count} file(s). Received: "
            f"{shorten(names)}"
        )
    return names


def _find_file(folder, name):
    """Returns the path of a file that a setting of `decoder.yml` names.

    A path that is absolute or contains `..`, or that does not exist, belongs to the
    machine that trained the model. Then the file is in the folder under its base name.
    """
    path = pathlib.PurePosixPath(name)
    is_inside = not path.is_absolute() and ".." not in path.parts
    # `os.path.isfile` returns false for names that are no file names.
    if is_inside and os.path.isfile(folder / path):
        return folder / path
    return folder / path.name


class _Vocabulary(NamedTuple):
    """Vocabulary of one side of a Marian model.

    Ids of Marian's model can be without a piece. They do not exist in the imported
    model, so that it never generates them.
    """

    file: pathlib.Path
    pieces: tuple  # of str
    ids: tuple  # of int, the id of each piece in Marian's model, increasing
    num_ids: int  # number of ids in Marian's model


def _read_vocabularies(folder, decoder, sizes):
    """Returns the `_Vocabulary` of source and target."""
    names = _file_names(decoder, "vocabs", 2)
    files = [_find_file(folder, name) for name in names]
    if files[0] == files[1] and len(set(map(pathlib.PurePosixPath, names))) == 2:
        raise ModelError(
            f"{decoder['path']}: vocabs must name files in this folder. Received: "
            f"{shorten(names)}, which both stand for {files[0].name}"
        )
    vocabularies = []
    for file, size in zip(files, sizes, strict=True):
        entries = read_entries(file, size or None)
        num_ids = max(entries) + 1
        if size and file.suffix != ".spm":
            num_ids = size
        ids, pieces = tuple(entries), tuple(entries.values())
        vocabularies.append(_Vocabulary(file, pieces, ids, num_ids))
    return vocabularies


def _read_tokenizer(folder, vocabularies, language, normalization):
    """Builds a `MarianTokenizer` from vocabularies and the SentencePiece models."""
    from keras_transformer.pipelines.tokenizers.marian import MarianTokenizer

    if (folder / "source.bpe").exists():
        raise ModelError(f"{folder}: source.bpe: {_SUBWORD_NMT}")
    sides = []
    for side, (file, pieces, *_) in zip(
        ("source", "target"), vocabularies, strict=True
    ):
        splitter = file if file.suffix == ".spm" else folder / f"{side}.spm"
        model = None
        if splitter.is_file():
            model = read_bytes(splitter, MAX_MODEL_BYTES, ModelError)
        if model is None and any(piece[:1] == "\u2581" for piece in pieces):
            raise ModelError(
                f"{splitter}: no such file. It is required, because {file.name} has "
                "pieces of SentencePiece"
            )
        if model is None and any(piece[:-2] and piece[-2:] == "@@" for piece in pieces):
            raise ModelError(f"{file}: {_SUBWORD_NMT}")
        sides.append((pieces, model))
    # A SentencePiece model that is also the vocabulary splits language prefixes such as
    # >>fra<< like the text. Otherwise, a prefix is a single piece.
    first = vocabularies[0].file
    try:
        return MarianTokenizer(*sides, normalization, language, first.suffix != ".spm")
    except DataError as error:
        raise DataError(f"{first}: {error}") from None


def _search_settings(decoder):
    """Converts Marian's search settings to the recipe's section `decoding`."""
    path = decoder["path"]
    beam_size, normalize, word_penalty = map(
        decoder.get, ("beam-size", "normalize", "word-penalty")
    )
    # Marian's defaults. `normalize` is the exponent of the length penalty.
    beam_size = 12 if beam_size is None else beam_size
    normalize = 0 if normalize is None else normalize
    check_number(path, "beam-size", beam_size, 1, 1000, kinds=(int,))
    check_number(path, "normalize", normalize, 0, 100)
    if word_penalty not in (None, 0):
        raise ModelError(
            f"{path}: word-penalty must be 0. Received: {shorten(word_penalty)}"
        )
    return {
        "beam_size": beam_size,
        "length_penalty": float(normalize),
        "length_penalty_kind": "power",
    }


def _read_license(folder):
    """Returns the first line of the license file, or `None` if there is no file."""
    names = [name for name in ("LICENSE", "LICENSE.txt") if (folder / name).is_file()]
    if not names:
        return None
    with open(folder / names[0], encoding="utf-8", errors="replace") as file:
        return file.read(2_000).strip().partition("\n")[0][:200] or None
