"""Models imported from other toolkits, and the folders that store them."""

import pathlib
from typing import Annotated, Any, NamedTuple

from pydantic import Field, ValidationError

from keras_transformer.errors import ModelError
from keras_transformer.files import replace_folder
from keras_transformer.pipelines.tokenizers.model_check import sentencepiece_pieces
from keras_transformer.untrusted import read_json, validation_message

# Engines whose results an imported model can reproduce: Marian, and Hugging Face's
# library transformers. They compute slightly different results with the same weights.
ENGINES = ("marian", "huggingface")
# The fields of `Variations` in which the engines differ, and their values.
ENGINE_VARIATIONS = {
    "marian": {"timescales": "tensor2tensor", "layer_norm_epsilon": 1e-6},
    "huggingface": {"timescales": "paper", "layer_norm_epsilon": 1e-5},
}
# Types of search settings, whose names and defaults differ between toolkits.
BeamSize = Annotated[int, Field(ge=1, le=1000)]
LengthPenalty = Annotated[float, Field(ge=0, le=100)]
# Maximum length of a source in subwords, as in Hugging Face's models.
_MAX_LENGTH = 512


class ImportedModel(NamedTuple):
    """A model imported from another toolkit.

    Attributes:
        model: `Transformer`.
        tokenizer: `Tokenizer` of the source, whose attribute `target` is that of the
            target.
        decoding: Dict with the model's search settings, as `decoding` of a recipe.
        card_rows: Dict with facts about the import, for the model card.
        license: License of the model, or `None` if unknown.
    """

    model: Any
    tokenizer: Any
    decoding: dict
    card_rows: dict
    license: str | None = None


def choose_engine(engine, default):
    """Returns `engine`, or `default` if `engine` is `None`."""
    if engine not in (None, *ENGINES):
        raise ModelError(
            f"engine must be one of {', '.join(ENGINES)}. Received: {engine}"
        )
    return engine or default


def check_settings(label, schema, settings):
    """Returns settings of another toolkit as an instance of a pydantic model."""
    try:
        return schema.model_validate(settings)
    except ValidationError as error:
        raise ModelError(f"{label}: {validation_message(error)}") from None


def model_arguments(path, tokenizer, engine, depths, changes, **settings):
    """Returns the arguments of `Transformer`, checked by the schema of recipes."""
    from keras_transformer.recipes.schema import ModelSettings

    if settings["d_model"] % 2:
        raise ModelError(
            f"{path}: d_model must be even. Received: {settings['d_model']}"
        )
    settings = {
        "num_layers": depths[0],
        **{"key_dim": None, "value_dim": None, "normalization": "post"},
        **settings,
        "variations": {
            **ENGINE_VARIATIONS[engine],
            "num_decoder_layers": None if depths[0] == depths[1] else depths[1],
            "attention_bias": True,
            **changes,
        },
    }
    return {
        **check_settings(path, ModelSettings, settings).constructor_arguments(),
        "vocabulary_size": tokenizer.vocabulary_size,
        "pad_id": tokenizer.pad_id,
        "output_size": tokenizer.target.num_outputs,
    }


def read_text_settings(folder, tokenizer):
    """Returns the `TextSettings` of an imported model.

    They are those in the folder, if this package has written it. Otherwise, they follow
    from the vocabulary, and from how toolkits train: on one sentence per line.
    """
    from keras_transformer.decoding.text import measure_pieces
    from keras_transformer.pipelines.tokenizers.normalization import TextSettings
    from keras_transformer.saving.names import TEXT

    if (folder / TEXT).is_file():
        return read_json(folder / TEXT, TextSettings, error=ModelError)
    pieces = [
        # A vocabulary can be that of both sides.
        each.pieces() if each.model is None else sentencepiece_pieces(each.model)
        for each in (tokenizer, tokenizer.target)
    ]
    # SentencePiece's tables keep many invisible characters.
    return TextSettings(normalization=True, sentences=True, **measure_pieces(*pieces))


def search_settings(beam_size, length_penalty):
    """Returns the section `decoding` of a recipe."""
    return {
        "beam_size": beam_size,
        "length_penalty": float(length_penalty),
        "length_penalty_kind": "power",
    }


def write_imported(imported, output):
    """Writes an imported model to a folder that `open_model` opens.

    The files are `model.keras`, the tokenizer, the recipe, and a model card. The folder
    appears once all are on disk.

    Args:
        imported: `ImportedModel`.
        output: Folder to write, which must not exist.

    Returns:
        Path of the folder.

    Raises:
        ModelError: If the folder exists.
        StorageError: If the disk is full.

    Examples:
        >>> opened = kt.open_model("phrases")  # in place of a model of another toolkit
        >>> imported = kt.interop.ImportedModel(
        ...     opened.model, opened.tokenizer, {"beam_size": 6}, {"origin": "here"}
        ... )
        >>> path = kt.interop.write_imported(imported, "models/mine")
        >>> kt.open_model(path).search.beam_size
        6
    """
    from keras_transformer.export.card import describe_model
    from keras_transformer.recipes import dump_recipe
    from keras_transformer.saving.keras_file import save_model
    from keras_transformer.saving.names import CONFIG, MODEL, TOKENIZER

    output = pathlib.Path(output)
    if output.exists():
        raise ModelError(f"{output}: already exists. Choose another folder")
    texts = describe_model(
        *(imported.model, imported.tokenizer, imported.decoding),
        license=imported.license,
        origin={name: str(value) for name, value in imported.card_rows.items()},
    )
    with replace_folder(output, must_be_new=True) as temporary:
        imported.tokenizer.save(temporary / TOKENIZER)
        fingerprint = imported.tokenizer.fingerprint()
        save_model(imported.model, temporary / MODEL, fingerprint)
        dump_recipe(_recipe(imported), temporary / CONFIG)
        for name, text in texts.items():
            (temporary / name).write_text(text, encoding="utf-8")
    return output


def _recipe(imported):
    from keras_transformer.recipes.schema import MODEL_ARGUMENTS, Recipe

    config = imported.model.get_config()
    tokenizer = imported.tokenizer
    return Recipe.model_validate(
        {
            "data": {"kind": "none", "max_length": _MAX_LENGTH},
            "tokenizer": {
                "kind": tokenizer.kind,
                "vocabulary_size": tokenizer.vocabulary_size,
            },
            "model": {name: config[name] for name in MODEL_ARGUMENTS},
            "decoding": imported.decoding,
        }
    )
