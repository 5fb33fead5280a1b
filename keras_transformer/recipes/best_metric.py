"""Choice of the validation metric for the best model and for early stopping."""

from typing import Literal

from pydantic import PositiveInt

from keras_transformer.recipes.data_sections import Section

BestMetric = Literal["bleu", "chrf", "f1", "perplexity"]
# The setting that turns on each metric. Perplexity is always measured.
_MEASUREMENTS = {
    "bleu": "validation_bleu",
    "chrf": "validation_bleu",
    "f1": "validation_f1",
}


class EarlyStopping(Section):
    """Condition for stopping before `steps`."""

    metric: BestMetric | None = None  # must equal best_metric if both are given
    patience: PositiveInt = 5  # validations without improvement


def given_metric(training):
    """Returns `best_metric` or, if it is not set, `early_stopping.metric`.

    Args:
        training: `TrainingSettings`.

    Returns:
        Name of the metric, or `None` if neither is set.
    """
    stopping = training.early_stopping
    return training.best_metric or (stopping.metric if stopping else None)


def check_best_metric(training):
    """Checks that `TrainingSettings` name at most one metric, and that it is measured.

    Raises:
        ValueError: If they name two metrics, or one that is not measured.
    """
    metric, stopping = given_metric(training), training.early_stopping
    if stopping and stopping.metric not in (None, metric):
        raise ValueError(
            "early_stopping.metric and best_metric must be equal if both are set. "
            f"Received: {stopping.metric} and {metric}"
        )
    needed = _MEASUREMENTS.get(metric)
    if needed and not getattr(training, needed):
        key = "best_metric" if training.best_metric else "early_stopping.metric"
        raise ValueError(f"{key}: {metric} requires {needed}: true")


def chosen_metric(training, data_kind):
    """Returns the metric that decides which model is best.

    If the settings name no metric, F1 decides for trees and BLEU for other kinds of
    data. If that metric is not measured, perplexity decides.

    Args:
        training: `TrainingSettings`.
        data_kind: Value of `data.kind`.
    """
    metric = "f1" if data_kind == "trees" else "bleu"
    is_measured = getattr(training, _MEASUREMENTS[metric])
    return given_metric(training) or (metric if is_measured else "perplexity")
