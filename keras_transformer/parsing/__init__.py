"""Constituency parsing (section 6.3 of the paper): trees, linearization and scores."""

from keras_transformer.parsing.bracketing import BracketingScore, bracketing_score
from keras_transformer.parsing.parser import Parse, parse_sentences, repair_report
from keras_transformer.parsing.treebank import TreeFiles

__all__ = [
    "BracketingScore",
    "Parse",
    "TreeFiles",
    "bracketing_score",
    "parse_sentences",
    "repair_report",
]
