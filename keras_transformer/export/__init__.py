"""Models for those who serve: SavedModel, CTranslate2."""

from keras_transformer.errors import ExportError
from keras_transformer.export.ctranslate2 import export_ctranslate2
from keras_transformer.export.model_card import facts_of_run
from keras_transformer.export.model_card import model_card
from keras_transformer.export.saved_model import export_saved_model

__all__ = [
    "ExportError",
    "export_ctranslate2",
    "export_saved_model",
    "facts_of_run",
    "model_card",
]
