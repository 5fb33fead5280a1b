"""Support for `score`, the old name of `score_mode`, until the next release."""

from keras_transformer._deprecated import warn_deprecated


def take_score_mode(kwargs, score_mode):
    """Returns the score mode, from `score_mode` or the old argument `score`.

    If `kwargs` contains `score`, removes it, warns, and returns its value.
    """
    if "score" not in kwargs:
        return score_mode
    warn_deprecated("score=", "score_mode=")
    return kwargs.pop("score")


def rename_score(config):
    """Returns a stored config with `score` renamed to `score_mode`."""
    names = {"score": "score_mode"}
    return {names.get(name, name): value for name, value in config.items()}
