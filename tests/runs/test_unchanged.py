"""Resuming a run refuses changed text and another number of replicas.

`fault_table.py` explains the marker `fault`.
"""

import pytest

from keras_transformer.errors import RunError
from keras_transformer.recipes import load_recipe
from keras_transformer.runs.folder import check_unchanged
from keras_transformer.runs.validation import validation_settings
from keras_transformer.training.callbacks import Progress


def check(progress, allow_changes=False, **changes):
    values = {"text": "a", "replicas": 2} | changes
    check_unchanged("run", progress, allow_changes, **values)


def settings(*overrides):
    files = "data.train={source: a, target: b}"
    beam = "training.validation_beam_size=2"
    return validation_settings(load_recipe("files", [files, beam, *overrides]))


@pytest.mark.fault("F06", "changed text or subwords: error; `--allow-changes` resumes")
def test_check_text_rejects_changed_text():
    progress = Progress()
    for _ in range(2):
        check(progress)
    with pytest.raises(
        RunError, match=r"run: the text of data\.train, .* have changed"
    ):
        check(progress, text="b")
    assert progress.text == "a"
    check(progress, True, text="b")
    assert progress.text == "b"
    # A text without a fingerprint is not checked.
    check(progress, text=None)
    check(progress, text="c")


@pytest.mark.fault("F06", "an error names both numbers of replicas")
def test_check_replicas_rejects_changed_number():
    progress = Progress()
    check(progress)
    with pytest.raises(RunError, match=r"on 2 replica\(s\)\. Now there are 4.*--all"):
        check(progress, replicas=4)
    assert progress.replicas == 2
    check(progress, True, replicas=4)
    assert progress.replicas == 4


def test_changed_validation_text_discards_the_best_score():
    """New scores cannot be compared with scores on other text."""
    progress = Progress()
    for _ in range(2):
        check(progress, validation_text="a")
    progress.record_score("bleu", 20.0)
    progress.record_score("bleu", 15.0)
    with pytest.raises(RunError, match=r"text of data\.validation .* have changed"):
        check(progress, validation_text="b")
    assert (progress.best_score, progress.validations_since_best) == (20.0, 1)
    check(progress, True, validation_text="b")
    assert (progress.best_score, progress.validations_since_best) == (None, 0)
    # Without validation or a fingerprint, nothing is known about the text.
    check(progress, validation_settings="other")
    assert (progress.validation_text, progress.validation_settings) == ("b", None)


GREEDY = "training.validation_beam_size=1"


@pytest.mark.parametrize(
    ("before", "after", "is_kept"),
    [
        ((), ("evaluation.lowercase=true",), False),
        ((), ("training.validation_sentences=3",), False),
        ((), (GREEDY,), False),
        ((), ("decoding.length_penalty=1.4",), False),
        # The beam size of validation replaces this one.
        ((), ("decoding.beam_size=9",), True),
        ((), ("training.learning_rate=0.1",), True),
        # The penalty does not matter to greedy search.
        ((GREEDY,), (GREEDY, "decoding.length_penalty=1.4"), True),
    ],
)
def test_changed_validation_settings_discard_the_best_score(
    before, after, is_kept, caplog
):
    progress = Progress()
    check(progress, validation_text="a", validation_settings=settings(*before))
    progress.record_score("bleu", 20.0)
    check(progress, validation_text="a", validation_settings=settings(*after))
    assert progress.best_score == (20.0 if is_kept else None)
    assert ("settings of validation have changed" in caplog.text) != is_kept
