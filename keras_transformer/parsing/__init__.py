"""Constituency parsing (section 6.3 of the paper): trees, linearization and scores."""

from keras_transformer.parsing.bracketing import BracketingScore
from keras_transformer.parsing.bracketing import bracketing_score
from keras_transformer.parsing.parser import Parse
from keras_transformer.parsing.parser import parse_sentences
from keras_transformer.parsing.parser import repair_report
from keras_transformer.parsing.treebank import TreeFiles

__all__ = [
    "BracketingScore",
    "Parse",
    "TreeFiles",
    "bracketing_score",
    "parse_sentences",
    "repair_report",
]
