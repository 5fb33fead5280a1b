"""Export to a preset, and checks that all exports share.

A preset is a folder with the model, its tokenizer and search settings.
"""

from keras_transformer.decoding.ensemble import Ensemble
from keras_transformer.errors import ExportError
from keras_transformer.export.card import describe_translator
from keras_transformer.saving.preset import save_preset
from keras_transformer.saving.stored_weights import check_finite


def export_preset(
    translator,
    folder,
    *,
    scores=(),
    license=None,
    dtype=None,
    description=None,
    texts=(),
):
    """Writes an opened model as a preset with a model card.

    Args:
        translator: `Translator` from `open_model`.
        folder: Folder to write. An existing preset is replaced, except for its
            `README.md` (see `save_preset`).
        scores: Evaluation scores for the model card (see `model_card`).
        license: License for the model card. If `None`, that of the opened model, if
            known.
        dtype: `"float16"` stores the weights in half precision. If `None`, they have
            the precision of the variables.
        description: One line for `metadata.json`.
        texts: Mapping of names of further text files to their content (see
            `save_preset`).

    Returns:
        Path of the folder.

    Raises:
        ExportError: If the model is an ensemble, or the translator has forbidden
            phrases.
        ModelError: If the folder contains anything but a preset.
        StorageError: If the disk is full.

    Examples:
        >>> translator = kt.open_model("phrases")
        >>> folder = kt.export.export_preset(translator, "preset", dtype="float16")
        >>> kt.saving.model_info(folder)["kind"]
        'preset'
    """
    check_exportable(translator.model)
    reject_forbidden_phrases(translator)
    return save_preset(
        translator.model,
        folder,
        translator.tokenizer,
        search=translator.search,
        max_source_length=translator.max_source_length,
        low_score=translator.low_score,
        dtype=dtype,
        description=description,
        texts={**describe_translator(translator, scores, license), **dict(texts)},
    )


def check_exportable(model):
    """Rejects an `Ensemble`, and a model with weights that are not finite."""
    if isinstance(model, Ensemble):
        raise ExportError("an ensemble cannot be exported. Export one of its models")
    check_finite(model.name, model.weights)


def reject_forbidden_phrases(translator):
    """Raises `ExportError` if a `Translator` has forbidden phrases or a glossary."""
    if translator.glossary:
        raise ExportError(
            "a glossary cannot be exported. Export the translator without it"
        )
    if translator.forbidden:
        raise ExportError(
            "forbidden phrases cannot be exported. Export the translator without them. "
            f"Received: forbidden={list(translator.forbidden)}"
        )
