"""Documents: their texts, and translations in their place."""

from keras_transformer.documents.document import FORMATS, Document, document_format

__all__ = ["FORMATS", "Document", "document_format"]
