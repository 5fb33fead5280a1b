"""Constituency parsing (section 6.3 of the paper): trees, linearization and scores."""

from keras_transformer.parsing.bracketing import BracketingScore, bracketing_score
from keras_transformer.parsing.linearization import (
    delinearize,
    linearize,
    source_text,
)
from keras_transformer.parsing.parser import Parse, parse_sentences, repair_report
from keras_transformer.parsing.treebank import TreeFiles
from keras_transformer.parsing.trees import Tree, parse_tree, read_trees, split_words

__all__ = [
    "BracketingScore",
    "Parse",
    "Tree",
    "TreeFiles",
    "bracketing_score",
    "delinearize",
    "linearize",
    "parse_sentences",
    "parse_tree",
    "read_trees",
    "repair_report",
    "source_text",
    "split_words",
]
