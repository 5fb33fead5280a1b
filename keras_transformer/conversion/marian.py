"""Import of a folder in Marian's format, such as an OPUS-MT model.

By default, scores match `marian-scorer` (see docs/how-to/import-a-marian-model.md).
"""

import pathlib
import re

from keras_transformer.conversion import weights
from keras_transformer.conversion.array_names import MARIAN_SETTINGS
from keras_transformer.conversion.array_names import marian_names
from keras_transformer.conversion.array_names import marian_norm_names
from keras_transformer.conversion.arrays import Arrays
from keras_transformer.conversion.arrays import read_npz
from keras_transformer.conversion.imported import ENGINE_VARIATIONS
from keras_transformer.conversion.imported import ImportedModel
from keras_transformer.conversion.imported import choose_engine
from keras_transformer.conversion.imported import model_arguments
from keras_transformer.conversion.vocabularies import read_vocabulary
from keras_transformer.errors import DataError
from keras_transformer.errors import ModelError
from keras_transformer.errors import RecipeError
from keras_transformer.pipelines.tokenizers.model_check import MAX_MODEL_BYTES
from keras_transformer.recipes.yaml_values import read_yaml
from keras_transformer.untrusted import read_bytes
from keras_transformer.untrusted import require_regular
from keras_transformer.untrusted import shorten

# Maximum size of YAML settings in bytes. Marian writes about 2,000.
MAX_YAML_BYTES = 1 << 16
_ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "gelu"}
# Settings that must have one of these values if they are given.
_REQUIRED = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-tied-layers": ([],),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-attention-mask": ("default",),
    "lemma-dim-emb": (0,),
    "input-types": ([], ["sequence", "sequence"]),
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
    folder, decoder = _decoder_settings(pathlib.Path(path))
    file = _model_file(folder, decoder)
    sizes = {MARIAN_SETTINGS: MAX_YAML_BYTES}
    arrays = Arrays(file, read_npz(file, sizes), ignored=(MARIAN_SETTINGS,))
    settings = _model_settings(arrays)
    _check_supported(file, settings)
    tokenizer = _tokenizer(folder, decoder, language, normalization)
    arguments, card_rows = _arguments(arrays, settings, tokenizer, engine)
    model = weights.build_transformer(arguments, arrays)
    _set_weights(model, arrays, settings, tokenizer)
    arrays.check_all_used()
    card_rows = {
        "imported from": f"Marian, {file.name}",
        "log-probabilities match": _ENGINE_NAMES[engine],
        **card_rows,
    }
    return ImportedModel(
        model, tokenizer, _decoding(decoder), card_rows, _license(folder)
    )


# Values of the row "log-probabilities match" in the model card.
_ENGINE_NAMES = {
    "marian": "Marian, except for float rounding",
    "huggingface": "Hugging Face's MarianMTModel, not Marian",
}


def _decoder_settings(path):
    """Returns the folder, and the settings in its `decoder.yml`.

    The key `path` is added to the settings, with the path of `decoder.yml`.
    """
    if path.is_file():
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
    settings = _load_yaml(file, read_bytes(file, MAX_YAML_BYTES, ModelError))
    return folder, {**settings, "path": file}


def _load_yaml(label, content):
    """Parses a mapping of settings from YAML.

    Raises:
        ModelError: If `content` is too long, invalid, or not a mapping.
    """
    if len(content) > MAX_YAML_BYTES:
        raise ModelError(f"{label}: must have at most {MAX_YAML_BYTES:,} bytes")
    try:
        settings = read_yaml(content.decode("utf-8"))
    except (RecipeError, UnicodeDecodeError) as error:
        raise ModelError(f"{label}: {shorten(error)}") from None
    if not isinstance(settings, dict):
        raise ModelError(f"{label}: must be a mapping of settings")
    return settings


def _model_file(folder, decoder):
    """Returns the path of the `.npz` file with the weights."""
    names = _names(decoder, "models", 1)
    path = folder / pathlib.PurePosixPath(names[0]).name
    if path.suffix != ".npz":
        raise ModelError(
            f"{path}: only .npz files can be imported, not quantized .bin files"
        )
    require_regular([path], ModelError)
    return path


def _names(decoder, key, count):
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


def _model_settings(arrays):
    if MARIAN_SETTINGS not in arrays:
        raise ModelError(
            f"{arrays.path}: must be a model that Marian has written, with the "
            f"settings in {MARIAN_SETTINGS}"
        )
    # Marian terminates the YAML text with a zero byte, newer versions with several.
    content = arrays.raw(MARIAN_SETTINGS).tobytes().rstrip(b"\0")
    return _load_yaml(f"{arrays.path}, {MARIAN_SETTINGS}", content)


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


def _tokenizer(folder, decoder, language, normalization):
    """Builds a `MarianTokenizer` from the vocabularies and SentencePiece models."""
    from keras_transformer.pipelines.tokenizers.marian import MarianTokenizer

    files = [
        folder / pathlib.PurePosixPath(name).name
        for name in _names(decoder, "vocabs", 2)
    ]
    if (folder / "source.bpe").exists():
        raise ModelError(
            f"{folder}: source.bpe: subwords of subword-nmt are not supported. Use a "
            "model with SentencePiece"
        )
    sides = []
    for side, file in zip(("source", "target"), files, strict=True):
        pieces = read_vocabulary(file)
        splitter = file if file.suffix == ".spm" else folder / f"{side}.spm"
        model = None
        if splitter.is_file():
            model = read_bytes(splitter, MAX_MODEL_BYTES, ModelError)
        if model is None and any(piece[:1] == "\u2581" for piece in pieces):
            raise ModelError(
                f"{splitter}: no such file. It is required, because {file.name} has "
                "pieces of SentencePiece"
            )
        sides.append((pieces, model))
    # A SentencePiece model that is also the vocabulary splits language prefixes such as
    # >>fra<< like the text. Otherwise, a prefix is a single piece.
    prefixes = files[0].suffix != ".spm"
    try:
        return MarianTokenizer(*sides, normalization, language, prefixes)
    except DataError as error:
        raise DataError(f"{files[0]}: {error}") from None


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


def _set_weights(model, arrays, settings, tokenizer):
    width, output_size = model.d_model, model.num_outputs
    source = output = bias = None
    # Source and target embeddings are one matrix, Wemb, or two matrices.
    if "Wemb" in arrays:
        target = arrays.take("Wemb", (output_size, width))
    else:
        source = arrays.take("encoder_Wemb", (tokenizer.num_outputs, width))
        target = arrays.take("decoder_Wemb", (output_size, width))
    name = _output_name(arrays, settings)
    if name is not None:
        is_old = name.endswith("W")
        shape = (width, output_size) if is_old else (output_size, width)
        output = arrays.take(name, shape)
        output = output.T if is_old else output
    if model.variations.logits_bias:
        bias = arrays.take("decoder_ff_logit_out_b", (1, output_size))[0]
    weights.set_embeddings(model, source, target, output, bias)
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        weights.set_layers(stack, _layer_reader(arrays, side))
    for side, norm in (("encoder", model.source_norm), ("decoder", model.target_norm)):
        if norm is not None:
            names = marian_norm_names(side)
            weights.set_norm(
                norm, *(arrays.take(name, (1, width))[0] for name in names)
            )


def _layer_reader(arrays, side):
    """Returns the argument `read` of `set_layers`, for Marian's array names."""

    def read(number, part, shape):
        weight, bias = marian_names(side, number, part)
        vector = arrays.take(bias, (1, shape[-1]))[0]
        if len(shape) == 1:  # the scale of a layer normalization
            return arrays.take(weight, (1, *shape))[0], vector
        return arrays.take(weight, shape), vector

    return read


def _decoding(decoder):
    """Converts Marian's search settings to the recipe's section `decoding`."""
    kinds = {"beam-size": int, "normalize": (int, float), "word-penalty": (int, float)}
    values = {name: decoder.get(name) for name in kinds}
    for name, kind in kinds.items():
        value = values[name]
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, kind)
        ):
            noun = "an integer" if kind is int else "a number"
            raise ModelError(
                f"{decoder['path']}: {name} must be {noun}. Received: {shorten(value)}"
            )
    if values["word-penalty"]:
        raise ModelError(
            f"{decoder['path']}: word-penalty must be 0. Received: "
            f"{values['word-penalty']}"
        )
    # Marian's defaults. `normalize` is the exponent of the length penalty.
    normalize = values["normalize"] or 0
    beam_size = values["beam-size"] or 12
    if not 1 <= beam_size <= 1000 or not 0 <= normalize <= 100:
        raise ModelError(
            f"{decoder['path']}: beam-size must be from 1 to 1000, and normalize from "
            f"0 to 100. Received: {beam_size} and {normalize}"
        )
    return {
        "beam_size": beam_size,
        "length_penalty": float(normalize),
        "length_penalty_kind": "power",
    }


def _license(folder):
    """Returns the first line of the license file, or `None` if there is no file."""
    names = [name for name in ("LICENSE", "LICENSE.txt") if (folder / name).is_file()]
    if not names:
        return None
    with open(folder / names[0], encoding="utf-8", errors="replace") as file:
        return file.read(2_000).strip().partition("\n")[0][:200] or None
