"""Attention plots, as figures and as an HTML page (the paper's Figures 3 to 5)."""

from keras_transformer.visualization.collect import (
    Attention,
    compute_attention,
    compute_export_attention,
)
from keras_transformer.visualization.figure import write_figure, write_page

__all__ = [
    "Attention",
    "compute_attention",
    "compute_export_attention",
    "write_figure",
    "write_page",
]
