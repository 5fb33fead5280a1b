"""Resuming a run refuses changed text and another number of replicas.

`fault_table.py` explains the marker `fault`.
"""

import types

import pytest

from keras_transformer.errors import RunError
from keras_transformer.experiments import unchanged
from keras_transformer.recipes import load_recipe
from keras_transformer.training.callbacks import Progress


@pytest.mark.fault("F06", "changed text or subwords: error; `--allow-changes` resumes")
def test_check_text_rejects_changed_text(tmp_path):
    progress = Progress()
    unchanged.check_text(tmp_path, progress, "a")
    unchanged.check_text(tmp_path, progress, "a")
    with pytest.raises(RunError, match=r"text of data\.train, .* have changed"):
        unchanged.check_text(tmp_path, progress, "b")
    assert progress.text == "a"
    unchanged.check_text(tmp_path, progress, "b", allow_changes=True)
    assert progress.text == "b"
    # A text without a fingerprint is not checked.
    unchanged.check_text(tmp_path, progress, None)
    unchanged.check_text(tmp_path, progress, "c")


def recipe(*overrides):
    files = "data.train={source: a, target: b}"
    return load_recipe("files", [files, "training.validation_beam_size=2", *overrides])


def test_changed_validation_text_discards_the_best_score(tmp_path):
    """New scores cannot be compared with scores on other text."""

    def check(corpora, **options):
        unchanged.check_validation(tmp_path, progress, corpora, recipe(), **options)

    progress = Progress()
    old, new, unknown = (
        {"validation": types.SimpleNamespace(fingerprint=each)}
        for each in ("a", "b", None)
    )
    for _ in range(2):
        check(old)
    progress.record_score("bleu", 20.0)
    progress.record_score("bleu", 15.0)
    with pytest.raises(RunError, match=r"text of data\.validation .* have changed"):
        check(new)
    assert (progress.best_score, progress.validations_since_best) == (20.0, 1)
    check(new, allow_changes=True)
    assert (progress.best_score, progress.validations_since_best) == (None, 0)
    assert progress.record_score("bleu", 10.0)
    # Without validation or a fingerprint, nothing is known about the text.
    for corpora in (unknown, {}):
        check(corpora)
    assert progress.validation_text == "b"


@pytest.mark.parametrize(
    ("setting", "is_kept"),
    [
        ("evaluation.lowercase=true", False),
        ("training.validation_sentences=3", False),
        ("training.validation_beam_size=1", False),
        ("decoding.length_penalty=1.4", False),
        # The beam size of validation replaces this one.
        ("decoding.beam_size=9", True),
        ("training.learning_rate=0.1", True),
    ],
)
def test_changed_validation_settings_discard_the_best_score(
    setting, is_kept, tmp_path, caplog
):
    corpora = {"validation": types.SimpleNamespace(fingerprint="a")}
    progress = Progress()
    unchanged.check_validation(tmp_path, progress, corpora, recipe())
    progress.record_score("bleu", 20.0)
    unchanged.check_validation(tmp_path, progress, corpora, recipe(setting))
    assert progress.best_score == (20.0 if is_kept else None)
    assert ("settings of validation have changed" in caplog.text) != is_kept


def test_penalty_does_not_matter_to_greedy_validation(tmp_path):
    corpora = {"validation": types.SimpleNamespace(fingerprint="a")}
    progress, greedy = Progress(), "training.validation_beam_size=1"
    unchanged.check_validation(tmp_path, progress, corpora, recipe(greedy))
    progress.record_score("bleu", 20.0)
    other = recipe(greedy, "decoding.length_penalty=1.4")
    unchanged.check_validation(tmp_path, progress, corpora, other)
    assert progress.best_score == 20.0


@pytest.mark.fault("F06", "an error names both numbers of replicas")
def test_check_replicas_rejects_changed_number(tmp_path):
    progress = Progress()
    for _ in range(2):
        unchanged.check_replicas(tmp_path, progress, 2)
    with pytest.raises(RunError, match=r"on 2 replica\(s\)\. Now there are 4.*--all"):
        unchanged.check_replicas(tmp_path, progress, 4)
    assert progress.replicas == 2
    unchanged.check_replicas(tmp_path, progress, 4, allow_changes=True)
    assert progress.replicas == 4
