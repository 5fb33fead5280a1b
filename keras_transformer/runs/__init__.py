"""Training runs from recipes (files of settings), and runs of the paper's Table 3."""

from keras_transformer._imports import lazy_names

_NAMES = {
    "average_run": "average",
    "extend_vocabulary": "vocabulary",
    "forward_flops": "cost",
    "repeat": "repetition",
    "training_flops": "cost",
}

__all__ = list(_NAMES)

__getattr__, __dir__ = lazy_names(
    __name__,
    (
        "average",
        "corpora",
        "cost",
        "folder",
        "plan",
        "repetition",
        "report",
        "table3",
        "train",
        "vocabulary",
    ),
    _NAMES,
)
