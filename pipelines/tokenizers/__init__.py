"""Tokenizers: text to subword ids and back, inside a TensorFlow graph."""

from keras_transformer.pipelines.tokenizers.base import Tokenizer
from keras_transformer.pipelines.tokenizers.core_byte_pairs import (
    CoreOpsBytePairTokenizer,
)
from keras_transformer.pipelines.tokenizers.kerashub import KerasHubTokenizer
from keras_transformer.pipelines.tokenizers.registry import load_tokenizer
from keras_transformer.pipelines.tokenizers.registry import train_tokenizer
from keras_transformer.pipelines.tokenizers.separate import SeparateTokenizers

__all__ = [
    "CoreOpsBytePairTokenizer",
    "KerasHubTokenizer",
    "SeparateTokenizers",
    "Tokenizer",
    "load_tokenizer",
    "train_tokenizer",
]
