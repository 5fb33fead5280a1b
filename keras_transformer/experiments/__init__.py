"""Training runs from recipes, which are files of settings, and the runs of Table 3."""

from keras_transformer._imports import lazy_modules

__getattr__, __dir__ = lazy_modules(
    __name__,
    (
        "average",
        "corpora",
        "cost",
        "curves",
        "plan",
        "repeat",
        "table3",
        "train",
        "vocabulary",
    ),
)
