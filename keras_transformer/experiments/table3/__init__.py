"""Trains the model variations of the paper's Table 3 on any translation data."""

from keras_transformer.experiments.table3.rows import expand_rows, row_recipe
from keras_transformer.experiments.table3.runs import ablate
from keras_transformer.experiments.table3.table import write_tables

__all__ = ["ablate", "expand_rows", "row_recipe", "write_tables"]
