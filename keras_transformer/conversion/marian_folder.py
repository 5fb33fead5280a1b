"""Files in Marian's folders, other than the weights.

These are `decoder.yml`, the vocabularies, SentencePiece models, and the license.
"""

import os
import pathlib
from typing import NamedTuple

from keras_transformer.conversion.vocabularies import read_entries
from keras_transformer.errors import DataError, ModelError, RecipeError
from keras_transformer.pipelines.tokenizers.model_check import MAX_MODEL_BYTES
from keras_transformer.recipes.yaml_values import read_yaml
from keras_transformer.untrusted import read_bytes, require_regular, shorten

# Maximum size of YAML settings in bytes. Marian writes about 2,000.
MAX_YAML_BYTES = 1 << 16
_SUBWORD_NMT = (
    "subwords of subword-nmt (with @@) are not supported. Use a model with "
    "SentencePiece"
)


def parse_settings(label, content):
    """Parses a mapping of settings from YAML."""
    if len(content) > MAX_YAML_BYTES:
        raise ModelError(f"{label}: must have at most {MAX_YAML_BYTES:,} bytes")
    try:
        settings = read_yaml(content.decode("utf-8"))
    except (RecipeError, UnicodeDecodeError) as error:
        raise ModelError(f"{label}: {shorten(error)}") from None
    if not isinstance(settings, dict):
        raise ModelError(f"{label}: must be a mapping of settings")
    return settings


def read_decoder_settings(path):
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
    settings = parse_settings(file, read_bytes(file, MAX_YAML_BYTES, ModelError))
    return folder, {**settings, "path": file}


def find_weights(folder, decoder):
    """Returns the path of the `.npz` file with the weights."""
    path = _find_file(folder, _names(decoder, "models", 1)[0])
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


class MarianVocabulary(NamedTuple):
    """Vocabulary of one side of a Marian model.

    Ids of Marian's model can be without a piece. They do not exist in the imported
    model, so that it never generates them.
    """

    file: pathlib.Path
    pieces: tuple  # of str
    ids: tuple  # of int, the id of each piece in Marian's model, increasing
    num_ids: int  # number of ids in Marian's model


def read_marian_vocabularies(folder, decoder, sizes):
    """Reads the vocabularies of source and target.

    Returns:
        List of two `MarianVocabulary`.
    """
    names = _names(decoder, "vocabs", 2)
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
        vocabularies.append(MarianVocabulary(file, pieces, ids, num_ids))
    return vocabularies


def read_marian_tokenizer(folder, vocabularies, language, normalization):
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


def convert_search_settings(decoder):
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
    beam_size = 12 if values["beam-size"] is None else values["beam-size"]
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


def read_license_file(folder):
    """Returns the first line of the license file, or `None` if there is no file."""
    names = [name for name in ("LICENSE", "LICENSE.txt") if (folder / name).is_file()]
    if not names:
        return None
    with open(folder / names[0], encoding="utf-8", errors="replace") as file:
        return file.read(2_000).strip().partition("\n")[0][:200] or None
