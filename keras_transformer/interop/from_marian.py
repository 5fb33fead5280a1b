"""Import of a folder in Marian's format, such as an OPUS-MT model.

By default, scores match `marian-scorer` (see docs/how-to/import-a-marian-model.md).
"""

import functools
import os
import pathlib
import re
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    field_validator,
)

from keras_transformer.errors import DataError, ModelError, RecipeError
from keras_transformer.interop import array_names, imported, weights
from keras_transformer.interop.array_names import MARIAN_SETTINGS
from keras_transformer.interop.arrays import Arrays, read_npz
from keras_transformer.interop.vocabularies import read_entries
from keras_transformer.pipelines.tokenizers.model_check import MAX_MODEL_BYTES
from keras_transformer.recipes.yaml_values import read_yaml
from keras_transformer.untrusted import read_bytes, require_regular, shorten

# The layers of a model with tied layers need no weights of their own in the file.
_MAX_TIED_LAYERS = 100
_NAMES = array_names.MARIAN_ARRAYS
# Marian's names of activations, and this package's names.
_ACTIVATIONS = {theirs: ours for ours, theirs in array_names.MARIAN_ACTIVATIONS.items()}
# Maximum size of YAML settings in bytes. Marian writes about 2,000.
_MAX_YAML_BYTES = 1 << 16
_SUBWORD_NMT = (
    "subwords of subword-nmt (with @@) are not supported. Use a model with "
    "SentencePiece"
)


class _FileSettings(BaseModel):
    """Settings with dashes in their names, in the YAML files of Marian."""

    model_config = ConfigDict(
        strict=True, alias_generator=lambda name: name.replace("_", "-")
    )


def _steps(order):
    """Returns the type of steps: addition (a), normalization (n), and dropout (d)."""

    def check(value):
        if value.replace("d", "") != order:  # dropout does not change inference
            raise ValueError("only post-norm Transformers are supported")
        return value

    return Annotated[str, AfterValidator(check)]


def _check_types(value):
    # Alignments and weights are columns of the training text. The model ignores them.
    types = [each for each in value if each not in ("alignment", "weight")]
    if types not in ([], ["sequence", "sequence"]):
        raise ValueError("only models from one text to another are supported")
    return value


class _ModelSettings(_FileSettings):
    """Settings that change a model's results, and the values that are supported."""

    type: Literal["transformer"] = "transformer"
    enc_depth: int
    dec_depth: int
    dim_emb: int
    transformer_heads: int
    transformer_dim_ffn: int
    dim_vocabs: Annotated[list[NonNegativeInt], Field(min_length=2)] = [0, 0]
    input_types: Annotated[list, AfterValidator(_check_types)] = []
    tied_embeddings: bool = False
    tied_embeddings_all: bool = False
    transformer_preprocess: _steps("") = ""
    transformer_postprocess: _steps("an") = "an"
    transformer_postprocess_top: _steps("") = ""
    transformer_postprocess_emb: str = ""
    transformer_ffn_activation: Literal[tuple(_ACTIVATIONS)] = "swish"
    # The decoder layer in the file whose weights each layer has, counted from 1. The
    # list is empty if each layer has its own weights.
    transformer_tied_layers: list[PositiveInt] = []
    transformer_decoder_autoreg: Literal["self-attention"] = "self-attention"
    transformer_ffn_depth: Literal[2] = 2
    transformer_decoder_ffn_depth: Literal[0, 2] = 0
    transformer_decoder_dim_ffn: int = 0  # 0 stands for `transformer_dim_ffn`
    transformer_attention_mask: Literal["default"] = "default"
    lemma_dim_emb: Literal[0] = 0
    transformer_no_projection: Literal[False] = False
    transformer_no_bias: Literal[False] = False
    transformer_no_affine: Literal[False] = False
    transformer_disable_position_embeddings: Literal[False] = False
    transformer_train_position_embeddings: Literal[False] = False
    transformer_pool: Literal[False] = False
    right_left: Literal[False] = False
    ulr: Literal[False] = False
    version: Any = "unknown"

    @field_validator("transformer_decoder_dim_ffn")
    @classmethod
    def _check_width(cls, width, info):
        expected = info.data.get("transformer_dim_ffn")
        if width not in (0, expected):
            raise ValueError(f"must equal transformer-dim-ffn, {expected}")
        return width

    @field_validator("transformer_tied_layers")
    @classmethod
    def _check_tied_layers(cls, tied, info):
        if tied and not len(tied) == info.data.get("dec_depth") <= _MAX_TIED_LAYERS:
            raise ValueError(
                "must list one layer number per decoder layer (dec-depth), of at most "
                f"{_MAX_TIED_LAYERS} layers"
            )
        return tied


class _DecoderSettings(_FileSettings):
    """The settings in `decoder.yml` that an import reads. Others are ignored."""

    models: Annotated[list[str], Field(min_length=1, max_length=1)]
    vocabs: Annotated[list[str], Field(min_length=2, max_length=2)]
    beam_size: imported.BeamSize | None = None
    normalize: imported.LengthPenalty | None = None  # exponent of the length penalty
    word_penalty: Annotated[float, Field(ge=0, le=0)] | None = None


def import_marian(path, engine=None, language=None, normalization=None):
    """Imports a model in Marian's format, such as an OPUS-MT model.

    Args:
        path: Folder of the model, or the `decoder.yml` in it.
        engine: `"marian"` or `"huggingface"`, the engine whose results the model
            reproduces. If `None`, `"marian"` is used.
        language: Target language of a multilingual model, such as `"fra"`, for texts
            that do not begin with a language, as `>>fra<<`. If `None`, they have none.
        normalization: `"opus"` to normalize texts as OPUS-MT does, or `None`.

    Returns:
        `ImportedModel`.

    Raises:
        ModelError: If files are missing or damaged, or the model is of a kind that is
            not supported.
        DataError: If the tokenizer cannot be read.

    Examples:
        >>> imported = kt.interop.import_marian("opus-mt-en-de", normalization="opus")
    """
    engine = imported.choose_engine(engine, "marian")
    decoder_file = _find_decoder(pathlib.Path(path))
    folder = decoder_file.parent
    content = read_bytes(decoder_file, _MAX_YAML_BYTES, ModelError)
    decoder = _parse_settings(decoder_file, content, _DecoderSettings)
    file = _find_file(folder, decoder.models[0])
    if file.suffix != ".npz":
        raise ModelError(
            f"{file}: only .npz files can be imported, not quantized .bin files"
        )
    require_regular([file], ModelError)
    stored = read_npz(file, MARIAN_SETTINGS, _MAX_YAML_BYTES)
    arrays = Arrays(file, stored, ignored=(MARIAN_SETTINGS,))
    settings = _read_model_settings(arrays)
    tied, sizes = settings.transformer_tied_layers, settings.dim_vocabs[:2]
    vocabularies = _read_vocabularies(folder, decoder_file, decoder.vocabs, sizes)
    _check_vocabularies(arrays, vocabularies, sizes)
    tokenizer = _read_tokenizer(folder, vocabularies, language, normalization)
    tokenizer.text = imported.read_text_settings(folder, tokenizer)
    arguments = _arguments(arrays, settings, tokenizer, engine)
    model = weights.build_transformer(arguments, arrays, len(set(tied)))
    _set_weights(model, arrays, settings, vocabularies)
    arrays.check_all_used()
    version = " ".join(str(settings.version).split())
    card_rows = {
        "imported from": f"Marian, {file.name}",
        "log-probabilities match": _ENGINE_NAMES[engine],
        "written by": f"Marian {version:.80}",
        "activation": arguments["activation"],
    }
    if num_missing := vocabularies[1].num_ids - len(vocabularies[1].ids):
        card_rows["ids without a subword"] = (
            f"{num_missing:,}, omitted from the softmax"
        )
    if tied:
        card_rows["tied decoder layers"] = (
            f"{' '.join(map(str, tied))}, stored as copies; fine-tuning unties them"
        )
    # Marian's defaults are a beam size of 12 and no length penalty.
    search = imported.search_settings(decoder.beam_size or 12, decoder.normalize or 0)
    license = _read_license(folder)
    return imported.ImportedModel(model, tokenizer, search, card_rows, license)


# Values of the row "log-probabilities match" in the model card.
_ENGINE_NAMES = {
    "marian": "Marian, except for float rounding",
    "huggingface": "Hugging Face's MarianMTModel, not Marian",
}


def _read_model_settings(arrays):
    if MARIAN_SETTINGS not in arrays:
        raise ModelError(
            f"{arrays.path}: must be a model that Marian has written, with the "
            f"settings in {MARIAN_SETTINGS}"
        )
    # Marian terminates the YAML text with a zero byte, newer versions with several.
    content = arrays.raw(MARIAN_SETTINGS).tobytes().rstrip(b"\0")
    return _parse_settings(f"{arrays.path}, {MARIAN_SETTINGS}", content, _ModelSettings)


def _parse_settings(label, content, schema):
    try:
        settings = read_yaml(content.decode("utf-8"))
    except RecipeError as error:
        raise ModelError(f"{label}:{shorten(error)}") from None
    except UnicodeDecodeError as error:
        raise ModelError(f"{label}: {shorten(error)}") from None
    return imported.check_settings(label, schema, settings)


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
        shape = arrays.raw(name).shape
        if shape[:1] != (num_ids,):
            raise ModelError(
                f"{file}: has ids up to {ids[-1]:,}, and dim-vocabs is {sizes}. So "
                f"{name} must have {num_ids:,} rows. Received shape: {list(shape)}"
            )


def _arguments(arrays, settings, tokenizer, engine):
    """Returns the arguments of `Transformer`."""
    changes = {
        "logits_bias": _NAMES["bias"] in arrays,
        "zero_start_id": tokenizer.start_id,
        "embedding_norm": "n" in settings.transformer_postprocess_emb,
        "tied_output": _output_name(arrays, settings) is None,
    }
    if _NAMES["shared"] not in arrays:
        changes["source_vocabulary_size"] = tokenizer.vocabulary_size
    activation = _ACTIVATIONS[settings.transformer_ffn_activation]
    is_old = _is_before_2023_03(settings.version)
    if activation == "gelu" and engine == "marian" and is_old:
        activation = "quick_gelu"
    return imported.model_arguments(
        *(arrays.path, tokenizer, engine),
        (settings.enc_depth, settings.dec_depth),
        changes,
        d_model=settings.dim_emb,
        d_ff=settings.transformer_dim_ffn,
        num_heads=settings.transformer_heads,
        activation=activation,
    )


def _is_before_2023_03(version):
    """Returns whether a version of Marian computes GELU as `x * sigmoid(1.702 x)`."""
    date = re.search(r"\b(20\d\d)-(\d\d)-\d\d\b", str(version))
    return date is not None and (date[1], date[2]) < ("2023", "03")


def _output_name(arrays, settings):
    """Returns the name of the output matrix, or `None` if it is tied."""
    if settings.tied_embeddings or settings.tied_embeddings_all:
        return None
    # Very old files store the matrix as `[d_model, outputs]`, under this name.
    old = "decoder_ff_logit_out_W"
    return old if old in arrays else _NAMES["output"]


def _set_weights(model, arrays, settings, vocabularies):
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
    tied = settings.transformer_tied_layers
    for side, stack, norm, numbers in (
        ("encoder", model.encoder, model.source_norm, []),
        ("decoder", model.decoder, model.target_norm, tied),
    ):
        weights.set_layers(stack, functools.partial(_read_part, arrays, side, numbers))
        if norm is not None:
            names = array_names.marian_norm_names(side)
            scale, offset = (arrays.take(name, (1, width))[0] for name in names)
            weights.set_norm(norm, scale, offset)


def _read_part(arrays, side, tied, number, part, shape):
    """Reads the weights of a part of a layer, for `set_layers`."""
    number = tied[number] - 1 if tied else number
    weight, bias = array_names.marian_names(side, number, part)
    vector = arrays.take(bias, (1, shape[-1]))[0]
    if len(shape) == 1:  # the scale of a layer normalization
        return arrays.take(weight, (1, *shape))[0], vector
    return arrays.take(weight, shape), vector


def _find_decoder(path):
    """Returns the path of the `decoder.yml` in a folder, or of the given file."""
    if path.is_file():
        if path.suffix not in (".yml", ".yaml"):
            raise ModelError(
                f"{path}: must be the folder of a model, or its decoder.yml. Import "
                f"{path.parent}"
            )
        return path
    found = sorted(path.glob("*decoder.yml"))
    plain = [each for each in found if each.name == "decoder.yml"]
    if len(plain or found) != 1:
        names = ", ".join(each.name for each in found) or "none"
        raise ModelError(
            f"{path}: must contain one decoder.yml of Marian, or a config.json of "
            f"Hugging Face. Received: {names}"
        )
    return (plain or found)[0]


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


def _read_vocabularies(folder, decoder_file, names, sizes):
    """Returns the `_Vocabulary` of source and target."""
    files = [_find_file(folder, name) for name in names]
    if files[0] == files[1] and len(set(map(pathlib.PurePosixPath, names))) == 2:
        raise ModelError(
            f"{decoder_file}: vocabs must name files in this folder. Received: "
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
                "subwords of SentencePiece"
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


def _read_license(folder):
    """Returns the first line of the license file, or `None` if there is no file."""
    names = [name for name in ("LICENSE", "LICENSE.txt") if (folder / name).is_file()]
    if not names:
        return None
    with open(folder / names[0], encoding="utf-8", errors="replace") as file:
        return file.read(2_000).strip().partition("\n")[0][:200] or None
