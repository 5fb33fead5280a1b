"""Beam search, sampling, and the `Translator`, which translates text."""

from keras_transformer.decoding.alignment import alignment_scores
from keras_transformer.decoding.alignment import format_pharaoh
from keras_transformer.decoding.beam_search import beam_search
from keras_transformer.decoding.ensemble import Ensemble
from keras_transformer.decoding.forbidden import Phrase
from keras_transformer.decoding.forbidden import forbidden_transitions
from keras_transformer.decoding.length_penalty import LENGTH_PENALTIES
from keras_transformer.decoding.options import BeamSearch
from keras_transformer.decoding.options import Sampling
from keras_transformer.decoding.options import SpecialIds
from keras_transformer.decoding.sampling import sample
from keras_transformer.decoding.scoring import PairScore
from keras_transformer.decoding.scoring import score_ids
from keras_transformer.decoding.search import sample_ids
from keras_transformer.decoding.search import translate_ids
from keras_transformer.decoding.segments import Translation
from keras_transformer.decoding.translator import Translator

__all__ = [
    "LENGTH_PENALTIES",
    "BeamSearch",
    "Ensemble",
    "PairScore",
    "Phrase",
    "Sampling",
    "SpecialIds",
    "Translation",
    "Translator",
    "alignment_scores",
    "beam_search",
    "forbidden_transitions",
    "format_pharaoh",
    "sample",
    "sample_ids",
    "score_ids",
    "translate_ids",
]
