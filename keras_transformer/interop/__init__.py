"""Models of other toolkits: Marian, Hugging Face transformers, and CTranslate2."""

from keras_transformer._imports import lazy_names

_NAMES = {
    "ImportedModel": "imported",
    "export_ctranslate2": "to_ctranslate2",
    "export_huggingface": "to_huggingface",
    "export_marian": "to_marian",
    "import_huggingface": "from_huggingface",
    "import_marian": "from_marian",
    "write_imported": "imported",
}

__all__ = list(_NAMES)

__getattr__, __dir__ = lazy_names(__name__, (), _NAMES)
