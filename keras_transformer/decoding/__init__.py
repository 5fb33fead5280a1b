"""Decoding: beam search, sampling, and the Translator that puts text around them."""

from keras_transformer.decoding.beam_search import beam_search
from keras_transformer.decoding.length_penalty import LENGTH_PENALTIES
from keras_transformer.decoding.sampling import sample
from keras_transformer.decoding.search import sample_ids
from keras_transformer.decoding.search import score_ids
from keras_transformer.decoding.search import translate_ids

__all__ = [
    "LENGTH_PENALTIES",
    "beam_search",
    "sample",
    "sample_ids",
    "score_ids",
    "translate_ids",
]
