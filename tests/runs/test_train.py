"""`train` on the embedded phrases: run folder, resuming, failures, and restarts."""

import shutil

import keras
import numpy as np
import pytest
from phrases_run import SMALL, small_recipe

from keras_transformer.errors import (
    CheckpointError,
    DataError,
    ModelError,
    RecipeError,
    RunError,
    TrainingFaultError,
)
from keras_transformer.evaluation.perplexity import compute_perplexity
from keras_transformer.opening import open_model
from keras_transformer.recipes import load_recipe
from keras_transformer.runs import corpora
from keras_transformer.runs.average import average_run
from keras_transformer.runs.corpora import load_pairs
from keras_transformer.runs.train import train
from keras_transformer.saving.checkpoints import checkpoint_paths
from keras_transformer.saving.names import read_final_scores, read_metrics
from keras_transformer.training import workers


def continue_quickly(run, steps):
    """Continues a run without translations, so that no search is compiled."""
    recipe = small_recipe(f"training.steps={steps}", "training.validation_bleu=false")
    return train(recipe, run, progress=False, allow_changes=True)


def weights(path):
    return [weight.numpy() for weight in keras.saving.load_model(path).weights]


def test_train_writes_run_folder(phrases_run):
    folder, summary = phrases_run
    assert {path.name for path in folder.iterdir()} == {
        *("config.yaml", "tokenizer", "cache", "checkpoints", "logs", ".lock"),
        *("metrics.jsonl", "best.keras", "model.keras", "curves.png"),
    }
    assert load_recipe(folder / "config.yaml") == small_recipe()
    assert summary["steps"] == 8
    assert summary["averaged checkpoints"] == 2
    # The usual estimate is 6 operations per weight and token, for 16 x 380 weights of
    # the embedding and about 5,000 others. The bounds are wide, because batches are not
    # full.
    tokens = 8 * small_recipe().training.batch_tokens
    counted = float(summary["training cost"].split(" FLOP, ")[0])
    assert 0.5 < counted / (6 * tokens * (16 * 380 + 5000)) < 1.5
    assert summary["training cost"].endswith(" TFLOP/s per device")
    rows = read_metrics(folder)
    assert [(row["split"], row["step"]) for row in rows] == [
        ("validation", 4),
        ("validation", 8),
        ("final", 8),
    ]
    assert all(row["perplexity"] > 1 and 0 <= row["bleu"] <= 100 for row in rows)


def test_log_ends_with_the_scores_of_the_final_model(phrases_run):
    folder, summary = phrases_run
    *_, last, final = read_metrics(folder)
    assert final["split"] == "final"
    assert read_final_scores(folder) == final
    pairs = load_pairs(small_recipe().data)["validation"]
    scored = open_model(folder / "model.keras").score(*zip(*pairs, strict=True))
    assert final["perplexity"] == pytest.approx(compute_perplexity(scored), rel=1e-4)
    assert final["perplexity"] != last["perplexity"]  # of the last checkpoint
    assert summary["validation"] == (
        f"perplexity {final['perplexity']:.2f}, bleu {final['bleu']:.2f} "
        "(beam size 1, length penalty 0.6)"
    )


def test_model_is_mean_of_last_checkpoints(phrases_run, tmp_path):
    folder, _ = phrases_run
    # The last two checkpoints: one every 3 steps, and one after the last step.
    single = []
    for number in (6, 8):
        copy = tmp_path / str(number)
        shutil.copytree(folder, copy)
        for path in (copy / "checkpoints").glob("ckpt-*"):
            if path.name != f"ckpt-{number}.npz":
                path.unlink()
        path, averaged = average_run(copy, last=5)
        assert len(averaged) == 1
        single.append(weights(path))
    for mean, one, other in zip(weights(folder / "model.keras"), *single, strict=True):
        assert not np.array_equal(one, other)
        np.testing.assert_allclose(mean, (one + other) / 2, atol=1e-7)


def test_average_removes_the_scores_of_the_replaced_model(phrases_run, tmp_path):
    folder, _ = phrases_run
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    average_run(copy, last=1, output=copy / "last.keras")
    assert read_final_scores(copy) == read_final_scores(folder) is not None
    average_run(copy, last=1)
    assert read_metrics(copy) == read_metrics(folder)[:-1]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        (["model.activation=rleu"], ModelError),
        (["data={kind: files, train: {source: no.en, target: no.de}}"], DataError),
    ],
)
def test_restart_with_a_wrong_recipe_keeps_the_run(
    phrases_run, tmp_path, changes, error
):
    copy = tmp_path / "run"
    shutil.copytree(phrases_run[0], copy)
    before = set(copy.rglob("*"))
    with pytest.raises(error):
        train(small_recipe(*changes), copy, progress=False, restart=True)
    assert set(copy.rglob("*")) == before


def test_jit_compile_on_two_gpus_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(workers.Workers, "num_replicas", 2)
    with pytest.raises(RecipeError, match=r"jit_compile: true .* 2 GPUs"):
        train(small_recipe("training.jit_compile=true"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_changed_text_without_a_fingerprint_is_noticed(
    phrases_run, tmp_path, monkeypatch
):
    """The phrases come from the package Babel, a new version of which changes them."""
    copy = tmp_path / "run"
    shutil.copytree(phrases_run[0], copy)
    original = corpora.phrases

    def changed(*args, **kwargs):
        splits = original(*args, **kwargs)
        return splits._replace(train=splits.train[::-1])

    monkeypatch.setattr(corpora, "phrases", changed)
    with pytest.raises(RunError, match=r"text of data\.train"):
        train(small_recipe("training.steps=9"), copy, progress=False)
    assert read_final_scores(copy) is not None


def test_fewer_steps_than_trained_are_reported(phrases_run, tmp_path, caplog):
    again = tmp_path / "again"
    shutil.copytree(phrases_run[0], again)
    summary = continue_quickly(again, 5)
    assert "has trained 8 steps, more than training.steps=5" in caplog.text
    assert summary["steps"] == 8


@pytest.mark.parametrize(
    ("steps", "message"),
    [(8, "already complete at step 8, as tr"), (9, "resuming from step 8 of 9")],
)
def test_resumed_run_says_where_it_begins(
    phrases_run, tmp_path, caplog, steps, message
):
    folder, first = phrases_run
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    with caplog.at_level("INFO", "keras_transformer"):
        summary = continue_quickly(again, steps)
    assert message in caplog.text
    assert "count all starts" in summary["resumed"] and "resumed" not in first


@pytest.mark.slow
def test_train_retries_failed_start_with_other_settings(tmp_path):
    """Word pieces, learned positions and bfloat16, after two starts that fail."""
    for settings, message in (
        (("tokenizer.vocabulary_size=9000",), r"tokenizer\.vocabulary_size=9000"),
        (
            ("tokenizer.vocabulary_size=390", "training.batch_tokens=3"),
            r"training\.batch_tokens=3",
        ),
    ):
        with pytest.raises(DataError, match=message):
            train(small_recipe(*settings), tmp_path, progress=False)
    recipe = small_recipe(
        "tokenizer.kind=word_piece",
        "tokenizer.vocabulary_size=450",
        "model.positions=learned",
        "model.max_length=200",
        "training.steps=2",
        "training.validation_bleu=false",
        "training.gradient_accumulation_steps=2",
        "training.mixed_precision=bfloat16",
        "training.schedule=noam",
        "training.learning_rate=null",
    )
    summary = train(recipe, tmp_path, progress=False)
    assert summary["steps"] == 2
    model = keras.saving.load_model(tmp_path / "model.keras")
    assert (model.positions, model.vocabulary_size) == ("learned", 450)
    assert model.dtype_policy.name == "mixed_bfloat16"


# A learning rate of 1e30 makes the second loss infinite, so its update is skipped.
DIVERGING = (
    "training.learning_rate=1e30",
    "training.warmup_steps=1",
    "training.checkpoint_steps=1",
)


@pytest.mark.fault(
    "F10", "the error names the step and the pairs; the last finite checkpoint is kept"
)
def test_diverging_run_stops_and_names_pairs(tmp_path):
    recipe = small_recipe(*DIVERGING, "training.on_nonfinite=stop")
    with pytest.raises(TrainingFaultError) as raised:
        train(recipe, tmp_path, progress=False)
    assert "step 2: the loss is not finite. Pairs in its batch: pair " in str(
        raised.value
    )
    (row,) = read_metrics(tmp_path)
    assert row["split"] == "skipped"
    pairs = [int(place.removeprefix("pair ")) for place in row["batch"]]
    all_pairs = list(load_pairs(small_recipe().data)["train"])
    assert len(pairs) > 10
    assert set(pairs) <= set(range(1, len(all_pairs) + 1))
    assert [*checkpoint_paths(tmp_path / "checkpoints")] == [1]


@pytest.mark.slow
def test_train_accepts_corrected_text_before_first_checkpoint(tmp_path, caplog):
    """The second start learns the vocabulary from the new text and empties the log."""
    text = ["die Katze", "der Hund", "ein Pferd und eine Kuh", "zwei Esel"] * 20
    source, target = tmp_path / "a.de", tmp_path / "a.en"
    target.write_text("".join(f"{line}\n" for line in text))
    source.write_text("".join(f"{line}\n" for line in ["\u00c3\u00b6 " * 9, *text[1:]]))

    def start(output, *overrides):
        keys = [f"data={{train: {{source: {source}, target: {target}}}}}"]
        own = [each for each in SMALL if not each.startswith("data.")]
        keys += [*own, "tokenizer.vocabulary_size=290", "training.steps=2", *overrides]
        return train(load_recipe("files", keys), output, progress=False)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    corrected, fresh = tmp_path / "corrected", tmp_path / "fresh"
    interrupted = pytest.MonkeyPatch.context
    with interrupted() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("keras_transformer.training.Trainer.fit", interrupt)
        start(corrected)
    first = (corrected / "tokenizer" / "tokenizer.model").read_bytes()
    (corrected / "metrics.jsonl").write_text('{"split": "validation", "step": 1}\n{"sp')
    source.write_text("".join(f"{line}\n" for line in ["", *text[1:]]))
    with caplog.at_level("WARNING", "keras_transformer"):
        # Only the text has changed, not the recipe.
        with interrupted() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("keras_transformer.training.Trainer.fit", interrupt)
            start(corrected)
        second = (corrected / "tokenizer" / "tokenizer.model").read_bytes()
        start(corrected)
    with interrupted() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("keras_transformer.training.Trainer.fit", interrupt)
        start(fresh)
    assert first != second
    assert second == (fresh / "tokenizer" / "tokenizer.model").read_bytes()
    assert (corrected / "metrics.jsonl").read_text() == ""
    assert "data.train: 79 of 80 pairs kept" in caplog.text
    assert "dropped: 1 with an empty side" in caplog.text


@pytest.mark.slow
@pytest.mark.fault("F03", "if all checkpoints are gone, an error unless `--restart`")
@pytest.mark.fault("F06", "the changed key is named; `--allow-changes` resumes")
def test_train_rejects_lost_checkpoints_and_changed_text(phrases_run, tmp_path):
    """A run starts over or resumes with other text only if an option allows it."""
    folder, _ = phrases_run
    lost = tmp_path / "lost"
    shutil.copytree(folder, lost)
    for path in (lost / "checkpoints").glob("ckpt-*"):
        path.unlink()
    with pytest.raises(CheckpointError, match=r"none is left.*`restart`"):
        train(small_recipe(), lost, progress=False)
    summary = train(
        small_recipe("training.steps=1"), lost, progress=False, restart=True
    )
    assert summary["steps"] == 1

    changed = tmp_path / "changed"
    shutil.copytree(folder, changed)
    # Another seed gives other phrases, as if text files had been edited.
    other = small_recipe("data.seed=5", "training.steps=9")
    with pytest.raises(RunError, match=r"different recipe \(data\.seed: 1 -> 5\)"):
        train(other, changed, progress=False)
    summary = train(other, changed, progress=False, allow_changes=True)
    assert summary["steps"] == 9
    assert load_recipe(changed / "config.yaml") == other
