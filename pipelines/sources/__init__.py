"""Sources of sentence pairs: files, TFDS, records and embedded phrases."""

from keras_transformer.pipelines.sources.base import Pairs
from keras_transformer.pipelines.sources.base import as_pairs
from keras_transformer.pipelines.sources.records import RecordFolder
from keras_transformer.pipelines.sources.text_files import TextFiles
from keras_transformer.pipelines.sources.tfds import TfdsPairs

__all__ = ["Pairs", "RecordFolder", "TextFiles", "TfdsPairs", "as_pairs"]
