"""Beam search, sampling, and the `Translator`, which translates text."""

from keras_transformer.decoding.alignment import alignment_scores, format_pharaoh
from keras_transformer.decoding.beam_search import beam_search
from keras_transformer.decoding.ensemble import Ensemble
from keras_transformer.decoding.forbidden import Phrase, forbidden_transitions
from keras_transformer.decoding.glossary import Glossary, Term, read_glossary
from keras_transformer.decoding.loop import StepDecoder
from keras_transformer.decoding.markup import translate_marked
from keras_transformer.decoding.options import (
    BeamSearch,
    Sampling,
    SpecialIds,
)
from keras_transformer.decoding.required import required_row
from keras_transformer.decoding.sampling import sample
from keras_transformer.decoding.scoring import PairScore, score_ids
from keras_transformer.decoding.search import sample_ids, translate_ids
from keras_transformer.decoding.translator import Translation, Translator

__all__ = [
    "BeamSearch",
    "Ensemble",
    "Glossary",
    "PairScore",
    "Phrase",
    "Sampling",
    "SpecialIds",
    "StepDecoder",
    "Term",
    "Translation",
    "Translator",
    "alignment_scores",
    "beam_search",
    "forbidden_transitions",
    "format_pharaoh",
    "read_glossary",
    "required_row",
    "sample",
    "sample_ids",
    "score_ids",
    "translate_ids",
    "translate_marked",
]
