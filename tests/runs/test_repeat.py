"""`repeat` trains one recipe with several seeds and reports mean and deviation.

tests/cli/test_compare_folders.py tests `compare`, which reads its output folders.
"""

import json
import os
import shutil
import statistics
import sys

import pytest
from commands import error_of, run_command
from phrases_run import small_recipe

from keras_transformer import machine
from keras_transformer.cli import console
from keras_transformer.errors import DataError, RecipeError, RunError
from keras_transformer.evaluation import bleu
from keras_transformer.opening import open_model
from keras_transformer.pipelines.sources.phrases import phrases
from keras_transformer.recipes import load_recipe
from keras_transformer.runs import validation
from keras_transformer.runs.repetition import LOG, read_translations, repeat
from keras_transformer.saving.names import read_final_scores

JOBS = min(2, machine.find_machine().cores)
TREES = "{kind: trees, train: {trees: a}, validation: {trees: b}}"
MIXTURE = "{train: [{source: a, target: a}]}"


@pytest.fixture
def run_instead(tmp_path, monkeypatch):
    """Function that replaces the training of each seed by a shell script."""

    def run_instead(script, is_terminal=False):
        fake = tmp_path / "python"
        fake.write_text(f"#!/bin/sh\n{script}\n")
        fake.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(fake))
        monkeypatch.setattr(os, "isatty", lambda descriptor: is_terminal)

    return run_instead


def test_repeat_reports_every_seed_and_their_spread(
    phrases_run, tmp_path, run_instead, monkeypatch
):
    """A copy of a finished run stands in for each training."""
    run_instead(
        'for word; do [ "$before" = --output ] && folder=$word; before=$word; done\n'
        f'cp -r {phrases_run[0]}/. "$folder" && echo "$@" >"$folder/arguments"'
    )
    # All copies have the same model, which is opened once.
    opened = open_model(phrases_run[0])
    monkeypatch.setattr(validation, "open_model", lambda folder, warn: opened)
    output = tmp_path / "seeds"
    results = repeat(small_recipe(), [1, 2], output, jobs=JOBS)
    assert [each["seed"] for each in results] == [1, 2]
    for seed, result in zip((1, 2), results, strict=True):
        folder = output / f"seed-{seed}"
        assert f"training.seed={seed}" in (folder / "arguments").read_text()
        names = "test.txt", "references.txt", "sources.txt"
        *lines, sources = [(folder / each).read_text().splitlines() for each in names]
        assert result["bleu"] == pytest.approx(bleu(*lines).score)
        assert sources == [source for source, _ in phrases(size=900, held_out=20).test]
        final = read_final_scores(folder)
        assert result["validation_perplexity"] == final["perplexity"] > 1
        assert result["validation_bleu"] == final["bleu"]
    assert len(read_translations(output)[0]) == 2
    # Finished seeds are neither trained nor scored again.
    run_instead("exit 1")
    assert repeat(small_recipe(), [2], output) == results[1:]
    changes = ["training.label_smoothing=0.2", "decoding.beam_size=3"]
    keys = r"training\.label_smoothing: [\d.]+ -> 0.2, decoding\.beam_size: \d -> 3"
    with pytest.raises(RecipeError, match=rf"differs from the recipe in {keys}\. "):
        repeat(small_recipe(*changes, "training.seed=9"), [1], output)


@pytest.mark.slow  # It trains in processes; the test above does not.
def test_repeat_reports_diverged_models(tmp_path):
    """Their mean negative log-likelihood is so high that perplexities are infinite."""
    rate = ("training.schedule=inverse_sqrt", "training.learning_rate=1e6")
    recipe = small_recipe("training.steps=2", "training.validation_bleu=false", *rate)
    results = repeat(recipe, [1, 2], tmp_path, jobs=JOBS)
    assert [each["perplexity"] for each in results] == [None, None]
    assert repeat(recipe, [1, 2], tmp_path) == results
    lines = (tmp_path / "results.md").read_text().splitlines()
    assert [line.split(" | ")[-2] for line in lines[2:5]] == ["-"] * 3
    assert len(read_translations(tmp_path)[0]) == 2


@pytest.mark.slow  # It starts two trainings, to read the error of one.
def test_repeat_reports_why_a_training_failed(tmp_path):
    recipe = small_recipe("tokenizer.vocabulary_size=9999")
    # `repeat` replaces a log that is a link, so the linked file stays empty.
    other, folder = tmp_path / "other", tmp_path / "seeds" / "seed-1"
    other.touch()
    folder.mkdir(parents=True)
    (folder / LOG).symlink_to(other)
    with pytest.raises(RunError, match=r"seed \d: .* exit code 2: error: .*vocabulary"):
        repeat(recipe, [1, 2], tmp_path / "seeds", jobs=JOBS)
    assert other.read_text() == ""


@pytest.mark.parametrize("is_terminal", [False, True])
def test_repeat_logs_a_single_job_unless_a_terminal_shows_it(
    tmp_path, run_instead, capfd, is_terminal
):
    run_instead("echo summary; echo reason >&2; exit 3", is_terminal)
    log = tmp_path / "seeds" / "seed-1" / LOG
    with pytest.raises(RunError) as raised:
        repeat(small_recipe(), [1], tmp_path / "seeds")
    message = "seed 1: training ended with exit code 3"
    shown = capfd.readouterr()
    assert shown.out == ""
    if is_terminal:
        assert (str(raised.value), shown.err) == (message, "reason\n")
        assert not (tmp_path / "seeds").exists()
    else:
        assert str(raised.value) == f"{message}: reason (see {log})"
        assert (shown.err, log.read_text()) == ("", "summary\nreason\n")


def test_repeat_prints_the_chosen_settings(tmp_path, monkeypatch, run_instead):
    """They fit the GPUs, which only TensorFlow finds, as with `train`."""
    gpus = [()]
    monkeypatch.setattr(machine, "_find_gpus", lambda: gpus[-1])
    monkeypatch.setattr(
        console, "load_tensorflow", lambda: gpus.append((machine.Gpu(8 << 30, 8.0),))
    )
    run_instead("exit 1")
    text = tmp_path / "text"
    text.write_text("a\n")
    command = ["repeat", "files", "-o", tmp_path / "seeds"]
    for split in ("train", "test"):
        command += ["--set", f"data.{split}={{source: {text}, target: {text}}}"]
    found = run_command(*command)
    assert "settings for 1 pairs on " in found.stderr
    assert "training.mixed_precision: bfloat16 (" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            (["phrases", f"--seeds={seeds}"], f"--seeds {seeds}")
            for seeds in ("1,x", "1,1", "-1", "1,4294967296")
        ),
        (["phrases", "--jobs=3"], "--jobs 3: must be at most the number of cores, 2"),
        (["phrases", "--set=data=" + TREES], "cannot be used with data.kind: trees"),
        (["files"], "data.test must be given"),
        (["phrases", "--set=data=" + MIXTURE], "data.test must be given"),
        (["files", "--set=data.test={source: b, target: b}"], "b: no such file"),
        (["files", "--set=data.test={source: c, target: c}"], "data.test must contain"),
    ],
)
def test_mistakes_are_reported_before_the_training(
    tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda process: {0, 3})
    (tmp_path / "a").write_text("a cat sat on it\n" * 20)
    (tmp_path / "c").write_text("\n\n")
    if arguments[0] == "files":
        arguments = [*arguments, "--set=data.train={source: a, target: a}"]
    found = run_command("repeat", *arguments, "-o", "new/seeds", code=2)
    assert message in found.output
    assert {each.name for each in tmp_path.iterdir()} == {"a", "c"}


class TestFinishedSeeds:
    """Seeds whose files are written by hand: no test of this class trains a model."""

    @pytest.fixture
    def recipe(self, tmp_path):
        """Recipe of a training and a test set of two pairs."""
        settings = ["model.size=tiny", "training.steps=1"]
        for split in ("train", "test"):
            for side, text in (("source", "one\ntwo\n"), ("target", "eins\nzwei\n")):
                path = tmp_path / f"{split}.{side}"
                path.write_text(text)
                settings.append(f"data.{split}.{side}={path}")
        return load_recipe("files", [*settings, "tokenizer.vocabulary_size=300"])

    def write(self, folder, **scores):
        """Writes the files of a seed that was scored on the test set of `recipe`."""
        folder.mkdir(parents=True)
        numbers = dict.fromkeys(("bleu", "chrf", "perplexity", "seconds"), 1.0)
        numbers |= dict.fromkeys(("validation_bleu", "validation_perplexity")) | scores
        rest = {"bleu_interval": [0.0, 1.0], "parameters": 1, "signatures": []}
        result = {"seed": int(folder.name.partition("-")[2]), **numbers, **rest}
        (folder / "result.json").write_text(json.dumps(result))
        (folder / "test.txt").write_text("ein\nzwo\n")
        (folder / "sources.txt").write_text("one\ntwo\n")
        (folder / "references.txt").write_text("eins\nzwei\n")

    def test_report_has_means_of_scores_that_all_seeds_have(self, recipe, tmp_path):
        output = tmp_path / "seeds"
        self.write(output / "seed-1", bleu=12.345, validation_bleu=3.0, chrf=2.0)
        self.write(output / "seed-2", bleu=20.0, validation_perplexity=4.0, chrf=4.0)
        repeat(recipe, [1, 2], output)
        report = json.loads((output / "results.json").read_text())
        for name, scores in (("bleu", (12.345, 20.0)), ("chrf", (2.0, 4.0))):
            assert report[name]["mean"] == pytest.approx(statistics.mean(scores))
            assert report[name]["deviation"] == pytest.approx(statistics.stdev(scores))
        assert "validation_bleu" not in report
        lines = (output / "results.md").read_text().splitlines()
        assert lines[0].startswith("| seed | validation BLEU | validation perplexity ")
        assert lines[2].startswith("| 1 | 3.00 | - | 12.35 | ")
        assert lines[3].startswith("| 2 | - | 4.000 | 20.00 | ")
        assert lines[4].startswith("| mean | - | - | 16.17 ± 5.41 | ")
        assert len({line.count("|") for line in lines[:5]}) == 1
        assert (output / "results.png").read_bytes().startswith(b"\x89PNG")

    @pytest.mark.parametrize(
        ("changes", "name"),
        [
            ({"source": "one\nTWO\n"}, "seed-1/sources.txt"),
            ({"target": "eins\ndrei\n"}, "seed-1/references.txt"),
            # A pair without a target is omitted.
            ({"target": "eins\n\n"}, "seed-1/sources.txt"),
        ],
    )
    def test_seeds_with_other_test_text_are_refused(
        self, recipe, tmp_path, changes, name
    ):
        output = tmp_path / "seeds"
        for seed in (1, 2):
            self.write(output / f"seed-{seed}")
        assert len(repeat(recipe, [1, 2], output)) == 2
        for side, text in changes.items():
            (tmp_path / f"test.{side}").write_text(text)
        message = rf"{name}: differs from data\.test.* Delete .*seed-1/result\.json"
        with pytest.raises(DataError, match=message):
            repeat(recipe, [1, 2], output)
        # The old report remains.
        assert len(json.loads((output / "results.json").read_text())["seeds"]) == 2

    def test_report_names_finished_seeds_that_it_omits(self, recipe, tmp_path):
        output = tmp_path / "seeds"
        for seed in (2, 4, 10):
            self.write(output / f"seed-{seed}")
        # An unfinished seed, and a folder that is no seed.
        (output / "seed-5").mkdir()
        shutil.copytree(output / "seed-4", output / "seed-copy")
        report = output / "results.md"
        repeat(recipe, [4], output)
        assert "\nFinished seeds that this report omits: 2, 10. " in report.read_text()
        repeat(recipe, [10, 2, 4], output)
        assert "omits" not in report.read_text()

    def test_damaged_result_is_named(self, recipe, tmp_path):
        self.write(tmp_path / "seeds" / "seed-1")
        (tmp_path / "seeds" / "seed-1" / "result.json").write_text('{"seed": "1"}')
        with pytest.raises(RunError, match=r"seed-1/result\.json"):
            repeat(recipe, [1], tmp_path / "seeds")

    @pytest.mark.parametrize(
        ("jobs", "is_terminal"), [(1, True), (1, False), (2, True)]
    )
    def test_recipe_of_trained_seeds_is_kept(
        self, recipe, tmp_path, run_instead, jobs, is_terminal
    ):
        output = tmp_path / "seeds"
        run_instead("exit 1", is_terminal)
        with pytest.raises(RunError, match=r"seed \d: training ended with exit code 1"):
            repeat(recipe, [1, 2], output, jobs=min(jobs, JOBS))
        # Only a log remains, unless the output went to the terminal.
        assert not (output / "config.yaml").exists()
        for seed in (1, 2):
            shutil.rmtree(output / f"seed-{seed}", ignore_errors=True)
            self.write(output / f"seed-{seed}")
            (output / f"seed-{seed}" / "metrics.jsonl").touch()
        with pytest.raises(RunError, match=r"seed 3: training ended with exit code 1"):
            repeat(recipe, [1, 2, 3], output, jobs=min(jobs, JOBS))
        assert (output / "config.yaml").exists()

    def test_compare_refuses_seeds_with_different_references(self, recipe, tmp_path):
        folders = tmp_path / "a", tmp_path / "b"
        for folder in folders:
            for seed in (1, 2):
                self.write(folder / f"seed-{seed}")
            repeat(recipe, [1, 2], folder)
        command = ["compare", *folders, "--samples=9"]
        run_command(*command, code=0)
        # The number of lines is unchanged.
        path = folders[1] / "seed-2" / "references.txt"
        path.write_text("eins\ndrei\n")
        first = folders[1] / "seed-1" / "references.txt"
        error = error_of(run_command(*command))
        assert f"{first} and {path}: must be equal" in error
