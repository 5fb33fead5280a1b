"""Checks that a model can be exported."""

from keras_transformer.decoding.ensemble import Ensemble
from keras_transformer.errors import ExportError
from keras_transformer.saving.stored_weights import check_finite


def check_exportable(model):
    """Rejects an `Ensemble`, and a model with weights that are not finite."""
    if isinstance(model, Ensemble):
        raise ExportError("an ensemble cannot be exported. Export one of its models.")
    check_finite(model.name, model.weights)


def reject_forbidden_phrases(translator):
    """Raises `ExportError` if a `Translator` has forbidden phrases."""
    if translator.forbidden:
        raise ExportError(
            "forbidden phrases cannot be exported. Export the translator without them. "
            f"Received: forbidden={list(translator.forbidden)}"
        )
