"""Table 3 of the paper in one command: every variation on one's own data."""

from keras_transformer.ablation.rows import AblationError
from keras_transformer.ablation.rows import expand_rows
from keras_transformer.ablation.rows import row_recipe
from keras_transformer.ablation.runs import ablate
from keras_transformer.ablation.table import write_tables

__all__ = ["AblationError", "ablate", "expand_rows", "row_recipe", "write_tables"]
