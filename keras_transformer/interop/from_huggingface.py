"""Import of Hugging Face folders: Marian, such as OPUS-MT, M2M100, NLLB and mBART-50.

By default, logits match those computed by Hugging Face transformers (see
docs/how-to/import-a-marian-model.md).
"""

import functools
import logging
import math
import pathlib
import re
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from keras_transformer.errors import DataError, ModelError, RecipeError
from keras_transformer.interop import array_names, imported, weights
from keras_transformer.interop.arrays import Arrays, read_safetensors, read_torch
from keras_transformer.interop.fairseq_tokenizers import read_fairseq_tokenizer
from keras_transformer.interop.vocabularies import read_vocabulary
from keras_transformer.pipelines.tokenizers.model_check import MAX_MODEL_BYTES
from keras_transformer.recipes.data_sections import Fraction
from keras_transformer.recipes.yaml_values import read_yaml
from keras_transformer.untrusted import (
    escape_controls,
    read_bytes,
    read_json,
    shorten,
)

logger = logging.getLogger(__name__)

_MAX_JSON_BYTES = 16 << 20
# The front matter of a README.md may list the scores of hundreds of language pairs.
_MAX_README_CHARACTERS = 1 << 18
# Older files also contain copies of the embeddings, and the sinusoidal positions.
_NAMES = array_names.HUGGINGFACE_ARRAYS
_IGNORED = tuple(_NAMES.values())
_FAIRSEQ_IGNORED = (
    *(_NAMES[name] for name in ("shared", "source", "target", "output", "bias")),
    *("model.encoder.version", "model.decoder.version"),
    *(f"model.{side}.embed_positions.weights" for side in ("encoder", "decoder")),
)
# Names of activations in config.json, and this package's names.
_ACTIVATIONS = {
    "swish": "silu",
    **{theirs: ours for ours, theirs in array_names.HUGGINGFACE_ACTIVATIONS.items()},
}
# Largest error of a position, by the stored type. Rounding a number from 0.5 to 1
# changes it by up to 2^-12 in float16 and 2^-9 in bfloat16.
_POSITION_TOLERANCES = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-2}
# Settings of transformers' `generate` that have no equivalent, and the values with
# which they do not change translations.
_IGNORED_SETTINGS = {
    "bad_words_ids": (),
    "begin_suppress_tokens": (),
    "diversity_penalty": (0,),
    "do_sample": (False,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1,),
    # The defaults of transformers, of fairseq's models, and of Marian's.
    "max_length": (20, 200, 512),
    "max_new_tokens": (),
    "min_new_tokens": (0,),
    "num_beam_groups": (1,),
    "penalty_alpha": (0,),
    "sequence_bias": (),
    "suppress_tokens": (),
    "temperature": (1,),
}
_BADLY_CONVERTED = (
    "Folders from a faulty conversion by transformers (issues 26216 and 26271) cannot "
    "be imported"
)


# Why folders of other `model_type`s cannot be imported.
_REFUSED = {
    "nllb-moe": "its layers are mixtures of experts",
    "fsmt": "its texts are tokenized by scripts of Moses, which cannot be in a graph",
    "t5": "it is another architecture, with relative positions",
    "mt5": "it is another architecture, with relative positions",
}


class _Sizes(BaseModel):
    """Settings in `config.json` that all supported models share."""

    model_config = ConfigDict(strict=True)

    encoder_layers: int
    decoder_layers: int
    d_model: Annotated[int, Field(ge=1)]
    encoder_ffn_dim: int
    decoder_ffn_dim: int
    encoder_attention_heads: int
    decoder_attention_heads: int
    dropout: Fraction = 0.1
    attention_dropout: Fraction = 0.0
    tie_word_embeddings: bool | None = True
    is_encoder_decoder: Literal[True] = True
    quantization_config: None = None

    @field_validator("decoder_ffn_dim", "decoder_attention_heads")
    @classmethod
    def _check_sides(cls, value, info):
        name = info.field_name.replace("decoder", "encoder")
        if value != info.data.get(name):
            raise ValueError(f"must equal {name}, {info.data.get(name)}")
        return value


class _Config(_Sizes):
    """Settings of a Marian model that an import reads, and the supported values."""

    activation_function: Literal[tuple(_ACTIVATIONS)] = "gelu"
    scale_embedding: Literal[True]
    share_encoder_decoder_embeddings: bool | None = True
    pad_token_id: int | None = None
    decoder_start_token_id: int | None = None
    # Of a post-norm model, as all of Marian are in transformers.
    static_position_embeddings: Literal[True] = True
    normalize_before: Literal[False] = False
    normalize_embedding: Literal[False] = False
    add_final_layer_norm: Literal[False] = False
    add_bias_logits: Literal[False] = False


class _FairseqConfig(_Sizes):
    """Settings of M2M100 and NLLB, with the defaults of transformers."""

    vocab_size: int
    max_position_embeddings: Annotated[int, Field(ge=1)] = 1024
    activation_function: Literal[tuple(_ACTIVATIONS)] = "relu"
    attention_dropout: Fraction = 0.1
    scale_embedding: Literal[True] = True
    pad_token_id: Literal[1] = 1
    decoder_start_token_id: Literal[2] = 2


class _MBartConfig(_FairseqConfig):
    """Settings of mBART-50."""

    activation_function: Literal[tuple(_ACTIVATIONS)] = "gelu"
    attention_dropout: Fraction = 0.0
    scale_embedding: Literal[True]  # false by default
    normalize_before: Literal[True] = True
    add_final_layer_norm: Literal[True] = True


class _Generation(BaseModel):
    """Settings of transformers' `generate` that an import reads."""

    model_config = ConfigDict(strict=True)

    num_beams: imported.BeamSize | None = None
    length_penalty: imported.LengthPenalty | None = None
    forced_bos_token_id: int | None = None
    no_repeat_ngram_size: Annotated[int, Field(ge=0)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, lt=math.inf)] | None = None
    min_length: Annotated[int, Field(ge=0)] | None = None


def import_huggingface(
    path, engine=None, language=None, normalization=None, source_language=None
):
    """Imports a Hugging Face folder of Marian, M2M100, NLLB or mBART-50.

    Args:
        path: Folder of the model.
        engine: As for `import_marian`. If `None`, `"huggingface"` is used.
        language: Default target language of a multilingual model, e.g. `"deu_Latn"`.
        normalization: `"opus"` to normalize texts as OPUS-MT does, or `None`.
        source_language: Default language of sources. `None` for Marian models, which
            have none.

    Returns:
        `ImportedModel`.

    Raises:
        ModelError: If files are missing or damaged, or the model is of a kind that is
            not supported.
        DataError: If the tokenizer cannot be read.

    Examples:
        >>> imported = kt.interop.import_huggingface(
        ...     "nllb-200", language="deu_Latn", source_language="eng_Latn"
        ... )
    """
    engine = imported.choose_engine(engine, "huggingface")
    folder = pathlib.Path(path)
    path = folder / "config.json"
    if not path.is_file():
        _reject_adapters(folder)
    stored = _read_mapping(path)
    kind = stored.get("model_type")
    if kind in _FAIRSEQ_CONFIGS:
        for name, given in {
            "engine marian": engine == "marian",
            "normalization": normalization is not None,
        }.items():
            if given:
                raise ModelError(f"{path}: {name} is only for Marian models. Omit it")
        return _import_fairseq(folder, stored, source_language, language)
    # Presets of this package and folders of CTranslate2 also contain a config.json.
    if kind != "marian":
        reason = _REFUSED.get(kind, "it is neither Marian, M2M100, NLLB nor mBART-50")
        raise ModelError(
            f"{path}: cannot be imported: {reason}. model_type must be marian, m2m_100 "
            f"or mbart. Received: {kind!r:.80}. Models of keras_transformer need no "
            "import"
        )
    if source_language is not None:
        raise ModelError(f"{path}: Marian models have no source language")
    config = imported.check_settings(path, _Config, stored)
    tokenizer = _tokenizer(folder, config, language, normalization)
    tokenizer.text = imported.read_text_settings(folder, tokenizer)
    arrays = _read_arrays(folder)
    arguments = _arguments(path, arrays, config, tokenizer, engine)
    model = weights.build_transformer(arguments, arrays)
    _set_weights(model, arrays, tokenizer)
    arrays.check_all_used()
    card_rows = {
        "imported from": f"a Hugging Face folder, {folder.resolve().name}",
        "logits match": _ENGINE_NAMES[engine],
        "activation": arguments["activation"],
    }
    if engine == "huggingface":
        card_rows["closer to Marian"] = (
            "import with --engine marian, for Marian's normalization epsilon and "
            "frequencies of the sinusoids"
        )
    generation = _read_generation(folder, stored)
    decoding = _read_decoding(folder, generation, tokenizer.target)
    license = _read_license(folder)
    return imported.ImportedModel(model, tokenizer, decoding, card_rows, license)


_FAIRSEQ_CONFIGS = {"m2m_100": _FairseqConfig, "mbart": _MBartConfig}


def _import_fairseq(folder, stored, source_language, target_language):
    """Imports M2M100, NLLB or mBART-50, which were trained with fairseq."""
    path, is_mbart = folder / "config.json", stored["model_type"] == "mbart"
    _check_tokenizer_class(folder, stored)
    config = imported.check_settings(
        path, _FAIRSEQ_CONFIGS[stored["model_type"]], stored
    )
    generation = _read_generation(folder, stored)
    arrays = _read_arrays(folder, _FAIRSEQ_IGNORED)
    tied = config.tie_word_embeddings is not False
    # A wrong vocab_size could need any amount of memory.
    name = _NAMES["shared" if tied else "output"]
    shape = config.vocab_size, config.d_model
    if arrays.raw(name).shape != shape:
        raise ModelError(
            f"{path}: vocab_size and d_model must be the shape of {name}, "
            f"{list(arrays.raw(name).shape)}. Received: {list(shape)}"
        )
    tokenizer = read_fairseq_tokenizer(
        folder,
        config.vocab_size,
        source_language,
        target_language,
        generation.search.forced_bos_token_id,
    )
    tokenizer.text = imported.read_text_settings(folder, tokenizer)
    changes = {
        "timescales": "paper" if is_mbart else "tensor2tensor",
        "first_position": 0 if is_mbart else config.pad_token_id + 1,
        "embedding_norm": is_mbart,
        # transformers always stores a bias, which is usually zeros.
        "logits_bias": _NAMES["bias"] in arrays
        and bool(arrays.raw(_NAMES["bias"]).any()),
        "tied_output": tied,
        "source_vocabulary_size": None if tied else config.vocab_size,
    }
    arguments = _sized(
        *(path, config, tokenizer, "huggingface", changes),
        normalization="pre",
        positions="learned" if is_mbart else "sinusoidal",
        max_length=config.max_position_embeddings if is_mbart else None,
    )
    model = weights.build_transformer(arguments, arrays)
    _set_fairseq_weights(model, arrays)
    arrays.check_all_used()
    card_rows = {
        "imported from": f"a Hugging Face folder, {folder.resolve().name}",
        "logits match": "transformers, except for float rounding",
        "languages": f"from {tokenizer.source_language} to {tokenizer.target_language} "
        f"by default, {len(tokenizer.languages)} in all",
    }
    decoding = _read_decoding(
        folder, generation, tokenizer.target, ("forced_bos_token_id",)
    )
    license = _read_license(folder)
    return imported.ImportedModel(model, tokenizer, decoding, card_rows, license)


def _check_tokenizer_class(folder, stored):
    """Checks that a folder's tokenizer has the languages where an import has them."""
    settings = dict(stored)
    if (folder / "tokenizer_config.json").is_file():
        settings |= _read_mapping(folder / "tokenizer_config.json")
    # mBART-cc25 puts the languages at the end of texts, and SMaLL-100 the target
    # language at the beginning of sources.
    is_mbart = stored["model_type"] == "mbart"
    what, names = "M2M100 and NLLB", ("M2M100Tokenizer", "NllbTokenizer")
    if is_mbart:
        what, names = "mBART-50", ("MBart50Tokenizer",)
    found = settings.get("tokenizer_class")
    if (is_mbart or found is not None) and not str(found).startswith(names):
        raise ModelError(
            f"{folder}: only {what} can be imported: tokenizer_class must be "
            f"{' or '.join(names)}. Received: {found!r:.80}"
        )


def _set_fairseq_weights(model, arrays):
    """Sets the weights of M2M100, NLLB or mBART-50."""
    shape = model.vocabulary_size, model.d_model
    variations, bias = model.variations, None
    names = [_NAMES[name] for name in ("shared", "source", "target", "output")]
    if variations.tied_output:
        shared = arrays.take(names[0], shape)
        for name in names[1:]:
            _check_copy(arrays, name, shared)
        matrices = None, shared, None
    else:
        matrices = [arrays.take(name, shape) for name in names[1:]]
    if variations.logits_bias:
        bias = arrays.take(_NAMES["bias"], (1, shape[0]))[0]
    weights.set_embeddings(model, *matrices, bias)
    for side, stack, positions, norm in (
        ("encoder", model.encoder, model.source_positions, model.source_norm),
        ("decoder", model.decoder, model.target_positions, model.target_norm),
    ):
        weights.set_layers(stack, functools.partial(_read_part, arrays, side))
        norms = {"layer_norm": stack.final_norm}
        if norm is not None:
            norms["layernorm_embedding"] = norm
            name = f"model.{side}.embed_positions.weight"
            # fairseq's first positions are those of padding.
            rows = arrays.take(name, (model.max_length + 2, shape[1]))[2:]
            positions.positions.assign(weights.interleave(rows))
        for name, layer in norms.items():
            pair = (f"model.{side}.{name}.{kind}" for kind in ("weight", "bias"))
            scale, offset = (arrays.take(each, shape[1:]) for each in pair)
            weights.set_norm(layer, scale, offset)


# Values of the row "logits match" in the model card.
_ENGINE_NAMES = {
    "huggingface": "transformers' MarianMTModel, except for float rounding",
    "marian": "Marian with these weights, not transformers",
}


def is_huggingface_folder(path):
    """Returns whether a folder has Hugging Face's format rather than Marian's."""
    names = "config.json", "adapter_config.json"
    return any((pathlib.Path(path) / name).is_file() for name in names)


def _tokenizer(folder, config, language, normalization):
    """Builds a `MarianTokenizer` from the vocabularies and SentencePiece models."""
    from keras_transformer.pipelines.tokenizers.marian import PADDING, MarianTokenizer

    settings = {}
    if (folder / "tokenizer_config.json").is_file():
        settings = _read_mapping(folder / "tokenizer_config.json")
    names = ["vocab.json", "vocab.json"]
    if settings.get("separate_vocabs"):
        names[1] = "target_vocab.json"
    sides = []
    for side, name in zip(("source", "target"), names, strict=True):
        *pieces, last = read_vocabulary(folder / name)
        if last != PADDING:
            raise ModelError(
                f"{folder / name}: the last subword must be {PADDING}. Received: "
                f"{last!r:.80}"
            )
        model = read_bytes(folder / f"{side}.spm", MAX_MODEL_BYTES, ModelError)
        sides.append((tuple(pieces), model))
    padding = len(sides[1][0])
    for name in ("pad_token_id", "decoder_start_token_id"):
        if getattr(config, name) not in (None, padding):
            raise ModelError(
                f"{folder / 'config.json'}: {name} must be {padding}, the last id of "
                f"{names[1]}. Received: {getattr(config, name)}"
            )
    try:
        return MarianTokenizer(*sides, normalization, language)
    except DataError as error:
        raise DataError(f"{folder}: {error}") from None


def _read_arrays(folder, ignored=_IGNORED):
    """Reads `model.safetensors`, its shards, or `pytorch_model.bin`."""
    file, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    binary = folder / "pytorch_model.bin"
    if file.is_file():
        path, (arrays, _) = file, read_safetensors(file)
    elif index.is_file():
        path, arrays = index, {}
        for name in _shard_names(index):
            shard, _ = read_safetensors(folder / name)
            if repeated := sorted(arrays.keys() & shard.keys()):
                raise ModelError(
                    f"{folder / name}: another shard also contains {repeated[0]!r:.80}"
                )
            arrays.update(shard)
    elif binary.is_file():
        path, arrays = binary, read_torch(binary)
    else:
        _reject_adapters(folder)
        raise ModelError(
            f"{folder}: must contain model.safetensors or pytorch_model.bin"
        )
    return Arrays(path, arrays, ignored)


def _reject_adapters(folder):
    """Raises `ModelError` for a folder of PEFT."""
    if (folder / "adapter_config.json").is_file():
        raise ModelError(
            f"{folder}: contains adapters of PEFT, not a model. Import the model for "
            "which they were trained, and open it with --adapters"
        )


def _shard_names(index):
    """Returns the sorted names of the files in `weight_map` of an index."""
    files = _read_mapping(index).get("weight_map")
    names = list(files.values()) if isinstance(files, dict) else [None]
    # Only files in the folder of the index are read.
    if not all(
        isinstance(name, str)
        and pathlib.PurePath(name).name == name
        and name not in ("", "..")
        for name in names
    ):
        raise ModelError(
            f"{index}: weight_map must map array names to names of files in this folder"
        )
    return sorted(set(names))


def _arguments(path, arrays, config, tokenizer, engine):
    """Returns the arguments of `Transformer`."""
    changes = {
        "logits_bias": _NAMES["bias"] in arrays,
        "tied_output": config.tie_word_embeddings is not False,
        "zero_start_id": tokenizer.start_id,
    }
    side = "shared"
    if config.share_encoder_decoder_embeddings is False:
        side, changes["source_vocabulary_size"] = "target", tokenizer.vocabulary_size
    matrix = arrays.raw(_NAMES[side])
    if matrix.ndim != 2 or not len(matrix):
        raise ModelError(f"{arrays.path}: the embeddings must be a matrix")
    if np.asarray(matrix[-1], np.float32).any():
        # Marian's start embedding is 0, but fine-tuning with transformers trains it.
        del changes["zero_start_id"]
    return _sized(path, config, tokenizer, engine, changes)


def _sized(path, config, tokenizer, engine, changes, **settings):
    """Adds the sizes of `_Sizes` to the arguments of `Transformer`."""
    return imported.model_arguments(
        *(path, tokenizer, engine),
        (config.encoder_layers, config.decoder_layers),
        changes,
        d_model=config.d_model,
        d_ff=config.encoder_ffn_dim,
        num_heads=config.encoder_attention_heads,
        activation=_ACTIVATIONS[config.activation_function],
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        **settings,
    )


def _set_weights(model, arrays, tokenizer):
    """Sets the weights of the model, and checks the copies of the embeddings."""
    # Padding and start share one id in these files, the last row of each matrix.
    variations, width = model.variations, model.d_model
    output_size = model.num_outputs
    separate = variations.source_vocabulary_size is not None
    sides = _NAMES["source"], _NAMES["target"]
    names = sides if separate else [_NAMES["shared"]] * 2
    shapes = [(side.num_outputs + 1, width) for side in (tokenizer, tokenizer.target)]
    source, target = (
        arrays.take(name, shape) for name, shape in zip(names, shapes, strict=True)
    )
    output = bias = None
    if not variations.tied_output:
        output = arrays.take(_NAMES["output"], (output_size + 1, width))[:-1]
    if variations.logits_bias:
        bias = arrays.take(_NAMES["bias"], (1, output_size + 1))[0, :-1]
    copies = () if separate else sides
    if variations.tied_output:
        copies = (*copies, _NAMES["output"])
    for name in copies:
        _check_copy(arrays, name, target)
    for name in (_NAMES["source_positions"], _NAMES["target_positions"]):
        if name in arrays:
            _check_positions(arrays, name, width)
    weights.set_embeddings(
        model,
        source[:-1] if separate else None,
        target[:-1],
        output,
        bias,
        start=target[-1] if variations.zero_start_id is None else None,
    )
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        weights.set_layers(stack, functools.partial(_read_part, arrays, side))


def _check_copy(arrays, name, matrix):
    if name in arrays and not np.array_equal(arrays.take(name, matrix.shape), matrix):
        raise ModelError(
            f"{arrays.path}: {name} must equal the other embeddings. {_BADLY_CONVERTED}"
        )


def _check_positions(arrays, name, width):
    found = arrays.take(name)
    # The shape is checked first, because a file may claim a huge narrow array.
    is_valid = found.ndim == 2 and found.size and found.shape[1] == width
    if is_valid:
        dims = np.arange(0, width, 2, dtype=np.float64)
        angles = np.arange(len(found))[:, None] / 10000 ** (dims / width)
        expected = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        is_shape = found.shape == expected.shape
        tolerance = _POSITION_TOLERANCES[arrays.raw(name).dtype.name]
        is_valid = is_shape and np.abs(found - expected).max() <= tolerance
    if not is_valid:
        raise ModelError(
            f"{arrays.path}: {name} must contain sinusoidal positions. "
            f"{_BADLY_CONVERTED}"
        )


def _read_part(arrays, side, number, part, shape):
    """Reads the weights of a part of a layer, for `set_layers`."""
    weight, bias = array_names.huggingface_names(side, number, part)
    # PyTorch stores the weights of a linear layer as [outputs, inputs].
    kernel = arrays.take(weight, tuple(shape)[::-1]).T
    return kernel, arrays.take(bias, (shape[-1],))


def _read_mapping(path):
    """Returns the mapping in a JSON file."""
    return read_json(path, dict[str, Any], _MAX_JSON_BYTES, ModelError)


class _StoredGeneration(NamedTuple):
    """Settings of transformers' `generate`, and the file that has precedence."""

    path: pathlib.Path
    settings: dict
    search: _Generation


def _read_generation(folder, config):
    """Returns the `_StoredGeneration` of a folder with the content of `config.json`."""
    settings, path = config, folder / "config.json"
    if (folder / "generation_config.json").is_file():
        path = folder / "generation_config.json"
        settings = {**config, **_read_mapping(path)}
    search = imported.check_settings(path, _Generation, settings)
    return _StoredGeneration(path, settings, search)


def _read_decoding(folder, generation, tokenizer, used=()):
    """Converts a `_StoredGeneration` to a recipe's `decoding`.

    Logs a warning for settings that change translations and have no equivalent, except
    for those in `used`.
    """
    path, settings, search = generation
    end_id = tokenizer.end_id
    if settings.get("eos_token_id") not in (None, end_id, [end_id]):
        raise ModelError(
            f"{path}: eos_token_id must be {end_id}, the id of </s>. Received: "
            f"{settings['eos_token_id']!r:.80}"
        )
    # The defaults of transformers.
    decoding = imported.search_settings(
        search.num_beams or 1,
        1 if search.length_penalty is None else search.length_penalty,
    )
    # transformers also counts the start id and the language.
    num_given = 2 if "forced_bos_token_id" in used else 1
    for name, value, neutral in (
        ("no_repeat_ngram_size", search.no_repeat_ngram_size, 0),
        ("repetition_penalty", search.repetition_penalty, 1),
        ("min_length", max((search.min_length or 0) - num_given, 0), 0),
    ):
        if value not in (None, neutral):
            decoding[name] = value
    # A search never generates these ids, and always ends with the end id.
    never = [tokenizer.pad_id, tokenizer.unknown_id, tokenizer.start_id]
    never = [[number] for number in never if number != end_id]
    changed = {
        name: value
        for name, neutral in _IGNORED_SETTINGS.items()
        if (value := settings.get(name)) not in (None, *neutral) and name not in used
    }
    words = changed.get("bad_words_ids")
    if isinstance(words, list) and all(each in never for each in words):
        del changed["bad_words_ids"]
    if changed.get("forced_eos_token_id") in (end_id, [end_id]):
        del changed["forced_eos_token_id"]
    if not settings.get("do_sample"):
        changed.pop("temperature", None)
    ignored = [f"{name}={value}"[:80] for name, value in changed.items()]
    if ignored:
        logger.warning(
            "%s: settings without an equivalent are ignored: %s",
            folder,
            escape_controls(", ".join(ignored)),
        )
    if settings.get("early_stopping") is True:
        # The search ends when `beam_size` hypotheses have finished.
        decoding["patience"] = 1.0
    return decoding


def _read_license(folder):
    """Returns the license or licenses in the front matter of README.md, or `None`."""
    path = folder / "README.md"
    if not path.is_file():
        return None
    # This codec removes a byte order mark.
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        head = file.read(_MAX_README_CHARACTERS)
    front_matter = re.match(r"---[ \t]*\n(.*?\n)---[ \t]*(\n|\Z)", head, re.DOTALL)
    try:
        settings = read_yaml(front_matter[1]) if front_matter else None
    except RecipeError:
        return None
    licenses = settings.get("license") if isinstance(settings, dict) else None
    licenses = licenses if isinstance(licenses, list) else [licenses]
    if not licenses or not all(isinstance(each, str) and each for each in licenses):
        return None
    return shorten(", ".join(licenses))
