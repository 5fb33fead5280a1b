"""Export to SavedModel, CTranslate2, Hugging Face transformers, Marian, and presets."""

from keras_transformer.errors import ExportError
from keras_transformer.export.ctranslate2 import export_ctranslate2
from keras_transformer.export.huggingface import export_huggingface
from keras_transformer.export.marian import export_marian
from keras_transformer.export.model_card import model_card, run_metadata
from keras_transformer.export.preset import export_preset
from keras_transformer.export.saved_model import export_saved_model, export_translator

__all__ = [
    "ExportError",
    "export_ctranslate2",
    "export_huggingface",
    "export_marian",
    "export_preset",
    "export_saved_model",
    "export_translator",
    "model_card",
    "run_metadata",
]
