"""Support for `score`, the old name of `score_mode`, until the next release."""

from keras_transformer._deprecated import take_renamed


def take_score_mode(kwargs, score_mode):
    """Returns the score mode, from `score_mode` or the old argument `score`."""
    return take_renamed(kwargs, "score", "score_mode=", score_mode)


def rename_score(config):
    """Returns a stored config with `score` renamed to `score_mode`."""
    names = {"score": "score_mode"}
    return {names.get(name, name): value for name, value in config.items()}
