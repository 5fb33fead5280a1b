"""Training runs from recipes (files of settings), and runs of the paper's Table 3."""

from keras_transformer._imports import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    (
        "average",
        "corpora",
        "cost",
        "plan",
        "repeat",
        "report",
        "table3",
        "train",
        "vocabulary",
    ),
)
