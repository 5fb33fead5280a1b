"""Where sentence pairs come from: files, TFDS, records, and embedded phrases."""

from keras_transformer.pipelines.sources.records import RecordFolder
from keras_transformer.pipelines.sources.text_files import TextFiles
from keras_transformer.pipelines.sources.tfds import TfdsPairs

__all__ = ["RecordFolder", "TextFiles", "TfdsPairs"]
