"""Where a model looks: pictures and a page (the paper's figures 3 to 5)."""

from keras_transformer.errors import ModelError
from keras_transformer.visualization.collect import Attention
from keras_transformer.visualization.collect import attention_of
from keras_transformer.visualization.figure import write_figure
from keras_transformer.visualization.page import write_page

__all__ = [
    "Attention",
    "ModelError",
    "attention_of",
    "write_figure",
    "write_page",
]
