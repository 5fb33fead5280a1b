"""Documents: their texts, and translations in their place."""

from keras_transformer.documents.document import Document, document_format

__all__ = ["Document", "document_format"]
