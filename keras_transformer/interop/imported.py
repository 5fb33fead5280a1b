"""Models imported from other toolkits, and the folders that store them."""

import pathlib
from typing import Any, NamedTuple

from keras_transformer.errors import ModelError
from keras_transformer.files import replace_folder
from keras_transformer.saving.card import CARD, SUMMARY, markdown_table

# Engines whose results an imported model can reproduce: Marian, and Hugging Face's
# library transformers. They compute slightly different results with the same weights.
ENGINES = ("marian", "huggingface")
# The fields of `Variations` in which the engines differ, and their values.
ENGINE_VARIATIONS = {
    "marian": {"position_rates": "tensor2tensor", "layer_norm_epsilon": 1e-6},
    "huggingface": {"position_rates": "paper", "layer_norm_epsilon": 1e-5},
}
# Maximum length of a source in subwords, as in Hugging Face's models.
_MAX_LENGTH = 512


class ImportedModel(NamedTuple):
    """A model imported from another toolkit.

    Attributes:
        model: `Transformer`.
        tokenizer: `MarianTokenizer`.
        decoding: Mapping, the section `decoding` of the model's recipe.
        card_rows: Mapping of names to values, the rows of the table in the model card.
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


def check_number(path, name, value, least, limit, kinds=(int, float)):
    """Raises a `ModelError` unless a setting is a number within limits."""
    if type(value) not in kinds or not least <= value <= limit:
        noun = "a number" if float in kinds else "an integer"
        raise ModelError(
            f"{path}: {name} must be {noun} from {least} to {limit}. Received: "
            f"{value!r:.80}"
        )


def model_arguments(path, settings, tokenizer, changes):
    """Returns the arguments of `Transformer`, checked by the schema of recipes."""
    from pydantic import ValidationError

    from keras_transformer.recipes.schema import ModelSettings

    base = {"key_dim": None, "value_dim": None, "normalization": "post"}
    width = settings["d_model"]
    if type(width) is int and width % 2:
        raise ModelError(f"{path}: d_model must be even. Received: {width}")
    try:
        checked = ModelSettings(**base, **settings, variations=changes)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "the settings"
        raise ModelError(f"{path}: {key}: {first['msg']}") from None
    return {
        **checked.constructor_arguments(),
        "vocabulary_size": tokenizer.vocabulary_size,
        "pad_id": tokenizer.pad_id,
        "output_size": tokenizer.target.num_outputs,
    }


def write_imported(imported, output):
    """Writes `model.keras`, the tokenizer, the recipe, and files that describe them.

    Returns the path of the folder, which appears once all files are on disk.
    """
    from keras_transformer.recipes import dump_recipe
    from keras_transformer.saving.info import ModelInfo
    from keras_transformer.saving.keras_file import store_fingerprint
    from keras_transformer.saving.names import CONFIG, MODEL, TOKENIZER

    output = pathlib.Path(output)
    if output.exists():
        raise ModelError(f"{output}: already exists. Choose another folder")
    with replace_folder(output, must_be_new=True) as temporary:
        imported.tokenizer.save(temporary / TOKENIZER)
        imported.model.save(temporary / MODEL)
        store_fingerprint(temporary / MODEL, imported.tokenizer.fingerprint())
        dump_recipe(_recipe(imported), temporary / CONFIG)
        (temporary / CARD).write_text(_card(imported), encoding="utf-8")
        origin = {name: str(value) for name, value in imported.card_rows.items()}
        info = ModelInfo(license=imported.license, origin=origin)
        (temporary / SUMMARY).write_text(info.summary(), encoding="utf-8")
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


def _card(imported):
    """Returns the Markdown text of `MODEL_CARD.md`."""
    rows = {"parameters": f"{imported.model.count_params():,}", **imported.card_rows}
    table = markdown_table(("property", "value"), rows.items())
    license = " ".join((imported.license or "not stated").split())
    return f"# Model card\n\n## Model\n\n{table}\n## License\n\n{license}\n"
