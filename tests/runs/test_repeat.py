"""`repeat` trains one recipe with several seeds and reports mean and deviation.

tests/cli/test_compare_folders.py tests `compare`, which reads its output folders.
"""

import json
import os
import shutil
import statistics
import sys

import pytest
from typer.testing import CliRunner

from keras_transformer import machine
from keras_transformer.cli import console
from keras_transformer.cli.app import app
from keras_transformer.errors import RecipeError, RunError
from keras_transformer.evaluation import bleu
from keras_transformer.runs.repeat import LOG, read_translations, repeat
from keras_transformer.pipelines.sources.phrases import phrases
from keras_transformer.recipes import load_recipe
from keras_transformer.saving.names import final_scores_of_run

JOBS = min(2, machine.find_machine().cores)
TINY = [
    *("data.size=400", "data.held_out=20", "tokenizer.vocabulary_size=380"),
    *("model.d_model=8", "model.d_ff=8", "model.num_heads=1", "model.num_layers=1"),
    *("model.key_dim=8", "model.value_dim=8", "training.steps=2"),
    *("training.warmup_steps=1", "training.cooldown_steps=0"),
    *("training.validation_bleu=false", "decoding.extra_length=5"),
]
TREES = "{kind: trees, train: {trees: a}, validation: {trees: b}}"


@pytest.fixture(scope="module")
def repeated(tmp_path_factory):
    """Pair of the output folder for two seeds, and the list of their results."""
    output = tmp_path_factory.mktemp("repeat") / "seeds"
    results = repeat(load_recipe("phrases", TINY), [1, 2], output, jobs=JOBS)
    return output, results


def test_repeat_reports_every_seed_and_their_spread(repeated):
    output, results = repeated
    assert [each["seed"] for each in results] == [1, 2]
    report = json.loads((output / "results.json").read_text())
    for metric in ("bleu", "chrf", "perplexity", "validation_perplexity"):
        scores = [each[metric] for each in results]
        assert report[metric]["mean"] == pytest.approx(statistics.mean(scores))
        assert report[metric]["deviation"] == pytest.approx(statistics.stdev(scores))
    # Different seeds give different models.
    assert results[0]["perplexity"] != results[1]["perplexity"]
    for seed, result in zip((1, 2), results, strict=True):
        folder = output / f"seed-{seed}"
        lines = [
            (folder / name).read_text().splitlines()
            for name in ("test.txt", "references.txt")
        ]
        assert result["bleu"] == pytest.approx(bleu(*lines).score)
        sources = (folder / "sources.txt").read_text().splitlines()
        assert sources == [source for source, _ in phrases(size=400, held_out=20).test]
        # The recipe disables BLEU for validation.
        final = final_scores_of_run(folder)
        assert result["validation_perplexity"] == final["perplexity"] > 1
        assert result["validation_bleu"] is None
    assert "validation_bleu" not in report
    assert "| mean | - | " in (output / "results.md").read_text()
    assert (output / "results.png").read_bytes().startswith(b"\x89PNG")


def test_repeat_does_not_train_finished_seeds_again(repeated):
    output, results = repeated
    before = {path: path.stat().st_mtime_ns for path in output.glob("seed-*/*.keras")}
    assert repeat(load_recipe("phrases", TINY), [2], output) == results[1:]
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_repeat_reads_results_without_validation_scores(repeated, tmp_path):
    copy = tmp_path / "seeds"
    shutil.copytree(repeated[0], copy)
    path = copy / "seed-1" / "result.json"
    result = json.loads(path.read_text())
    stored = dict(result, validation_bleu=12.345)
    path.write_text(json.dumps(stored))
    old = {name: result[name] for name in result if "validation" not in name}
    (copy / "seed-2" / "result.json").write_text(json.dumps({**old, "seed": 2}))
    first, second = repeat(load_recipe("phrases", TINY), [1, 2], copy)
    assert first == stored
    assert second == dict.fromkeys(stored) | old | {"seed": 2}
    perplexity = f"{stored['validation_perplexity']:.3f}"
    lines = (copy / "results.md").read_text().splitlines()
    assert lines[0].startswith("| seed | validation BLEU | validation perplexity | ")
    assert lines[2].startswith(f"| 1 | 12.35 | {perplexity} | ")
    assert lines[3].startswith(f"| 2 | - | - | {result['bleu']:.2f} | ")
    # The mean of one of the two seeds would be misleading.
    assert lines[4].startswith("| mean | - | - | ")
    assert len({line.count("|") for line in lines[:5]}) == 1
    assert len(read_translations(copy)[0]) == 2


@pytest.mark.slow
def test_repeat_reports_diverged_models(tmp_path):
    """Their mean negative log-likelihood is so high that perplexities are infinite."""
    rate = ("training.schedule=inverse_sqrt", "training.learning_rate=1e6")
    recipe = load_recipe("phrases", [*TINY, *rate])
    results = repeat(recipe, [1, 2], tmp_path, jobs=JOBS)
    assert [each["perplexity"] for each in results] == [None, None]
    assert repeat(recipe, [1, 2], tmp_path) == results
    lines = (tmp_path / "results.md").read_text().splitlines()
    assert [line.split(" | ")[-2] for line in lines[2:5]] == ["-"] * 3
    assert len(read_translations(tmp_path)[0]) == 2


def test_repeat_refuses_another_recipe(repeated):
    output, _ = repeated
    changes = [
        "training.label_smoothing=0.2",
        "decoding.beam_size=3",
        "training.seed=9",
    ]
    keys = r"training\.label_smoothing, decoding\.beam_size"
    with pytest.raises(RecipeError, match=rf"differs from the recipe in {keys}\. "):
        repeat(load_recipe("phrases", [*TINY, *changes]), [1], output)


@pytest.mark.slow
def test_repeat_reports_why_a_training_failed(tmp_path):
    settings = [*TINY, "tokenizer.vocabulary_size=9999"]
    # `repeat` replaces a log that is a link, so the linked file stays empty.
    other, folder = tmp_path / "other", tmp_path / "seeds" / "seed-1"
    other.touch()
    folder.mkdir(parents=True)
    (folder / LOG).symlink_to(other)
    with pytest.raises(RunError, match=r"seed \d: .* exit code 2: error: .*vocabulary"):
        repeat(load_recipe("phrases", settings), [1, 2], tmp_path / "seeds", jobs=JOBS)
    assert other.read_text() == ""


@pytest.mark.skipif(shutil.which("false") is None, reason="needs the command false")
@pytest.mark.parametrize(
    ("jobs", "is_terminal"),
    [
        (1, True),
        (1, False),
        pytest.param(
            2, True, marks=pytest.mark.skipif(JOBS < 2, reason="needs two CPU cores")
        ),
    ],
)
def test_repeat_keeps_the_recipe_of_trained_seeds(
    repeated, tmp_path, monkeypatch, jobs, is_terminal
):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    monkeypatch.setattr(os, "isatty", lambda descriptor: is_terminal)
    output = tmp_path / "seeds"
    with pytest.raises(RunError, match=r"seed \d: training ended with exit code 1"):
        repeat(load_recipe("phrases", TINY), [1, 2], output, jobs=jobs)
    assert not (output / "config.yaml").exists()
    # A log remains, unless the output went to the terminal.
    assert output.exists() == (jobs > 1 or not is_terminal)
    # Two seeds are trained, and the third fails.
    shutil.copytree(repeated[0], output, dirs_exist_ok=True)
    (output / "config.yaml").unlink()
    with pytest.raises(RunError, match=r"seed 3: training ended with exit code 1"):
        repeat(load_recipe("phrases", TINY), [1, 2, 3], output, jobs=jobs)
    assert (output / "config.yaml").exists()


@pytest.mark.skipif(not os.path.exists("/bin/sh"), reason="needs a shell")
@pytest.mark.parametrize("is_terminal", [False, True])
def test_repeat_logs_a_single_job_unless_a_terminal_shows_it(
    tmp_path, monkeypatch, capfd, is_terminal
):
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho summary\necho reason >&2\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    monkeypatch.setattr(os, "isatty", lambda descriptor: is_terminal)
    log = tmp_path / "seeds" / "seed-1" / LOG
    with pytest.raises(RunError) as raised:
        repeat(load_recipe("phrases", TINY), [1], tmp_path / "seeds")
    message = "seed 1: training ended with exit code 3"
    shown = capfd.readouterr()
    assert shown.out == ""
    if is_terminal:
        assert (str(raised.value), shown.err) == (message, "reason\n")
        assert not log.exists()
    else:
        assert str(raised.value) == f"{message}: reason (see {log})"
        assert shown.err == ""
        assert log.read_text() == "summary\nreason\n"


@pytest.mark.skipif(shutil.which("false") is None, reason="needs the command false")
def test_repeat_prints_the_chosen_settings(tmp_path, monkeypatch):
    """They fit the GPUs, which only TensorFlow finds, as with `train`."""
    gpus = [()]
    monkeypatch.setattr(machine, "_find_gpus", lambda: gpus[-1])
    monkeypatch.setattr(
        console, "load_tensorflow", lambda: gpus.append((machine.Gpu(8 << 30, 8.0),))
    )
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    text = tmp_path / "text"
    text.write_text("a\n")
    command = ["repeat", "files", "-o", str(tmp_path / "seeds")]
    for split in ("train", "test"):
        command += ["--set", f"data.{split}={{source: {text}, target: {text}}}"]
    found = CliRunner().invoke(app, command)
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
    found = CliRunner().invoke(app, ["repeat", *arguments, "-o", "new/seeds"])
    assert found.exit_code == 2 and message in found.output
    assert {each.name for each in tmp_path.iterdir()} == {"a", "c"}
