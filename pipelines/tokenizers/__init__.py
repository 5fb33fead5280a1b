"""Tokenizers: text to subword ids and back, inside a TensorFlow graph."""
