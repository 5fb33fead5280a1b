"""Checks that text and replicas of a run are unchanged when it is resumed.

Each check compares a value with the one in the restored `Progress` and stores it there.
"""

import logging

from keras_transformer.errors import RunError
from keras_transformer.experiments.validation import validation_settings

logger = logging.getLogger(__name__)


def join_fingerprints(fingerprints):
    """Returns the fingerprints, joined by "+", or `None` if one of them is `None`."""
    return None if None in fingerprints else "+".join(fingerprints)


def check_text(folder, progress, fingerprint, allow_changes=False):
    """Checks that the training text is unchanged; stores its fingerprint in `progress`.

    Args:
        folder: The run folder.
        progress: The restored `Progress`, which is updated.
        fingerprint: `EncodedCorpus.fingerprint` of each training text, joined by "+",
            or `None` if it is unknown for one of them.
        allow_changes: Whether the text may differ.

    Raises:
        RunError: If the run began with a different text.
    """
    is_known = progress.text is not None and fingerprint is not None
    if is_known and progress.text != fingerprint and not allow_changes:
        raise RunError(
            f"{folder}: the text of data.train, its length limit or its subwords have "
            "changed since the run began. Pass --allow-changes or --restart"
        )
    progress.text = fingerprint


def check_replicas(folder, progress, replicas, allow_changes=False):
    """Checks that the number of replicas is unchanged; stores it in `progress`.

    Each replica draws its own dropout masks, so their number changes the weights.

    Args:
        folder: The run folder.
        progress: The restored `Progress`, which is updated.
        replicas: Number of replicas.
        allow_changes: Whether the number may differ.

    Raises:
        RunError: If the run began with a different number.
    """
    changed = progress.replicas not in (None, replicas)
    if changed and not allow_changes:
        raise RunError(
            f"{folder}: the run began on {progress.replicas} replica(s). Now there are "
            f"{replicas}. Pass --allow-changes or --restart"
        )
    progress.replicas = replicas


def check_validation(folder, progress, corpora, recipe, allow_changes=False):
    """Checks that the validation text is unchanged.

    If the text may change, or the settings of validation have changed, the best score
    is discarded, because new scores cannot be compared with it.

    Args:
        folder: The run folder.
        progress: The restored `Progress`, which is updated.
        corpora: Mapping with the `EncodedCorpus` of the validation text, if there is
            any, under the key `validation`.
        recipe: The `Recipe`.
        allow_changes: Whether the text may differ.

    Raises:
        RunError: If the run began with a different text.
    """
    corpus = corpora.get("validation")
    if corpus is None or corpus.fingerprint is None:
        return
    changed = []
    if progress.validation_text not in (None, corpus.fingerprint):
        if not allow_changes:
            raise RunError(
                f"{folder}: the text of data.validation or its subwords have changed "
                "since the run began, so new scores cannot be compared with old ones. "
                "Pass --allow-changes or --restart"
            )
        changed.append("data.validation has")
    settings = validation_settings(recipe)
    if progress.validation_settings not in (None, settings):
        changed.append("settings of validation have")
    for each in changed:
        logger.warning("%s changed, so the best score is discarded", each)
        progress.discard_best()
    progress.validation_text = corpus.fingerprint
    progress.validation_settings = settings
