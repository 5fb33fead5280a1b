"""The commands on a real run, which was trained for a few steps."""

import json
import math
import os
import random
import re
import shutil
import signal

import keras
import numpy as np
import prepared
import pytest
import tiny_export
from commands import error_of, run_command
from malicious_graphs import write_limits
from phrases_run import SMALL
from waiting import newest_step, wait_until

from keras_transformer import evaluation, pipelines
from keras_transformer.opening import ModelError, open_model
from keras_transformer.recipes import dump_recipe, load_recipe

pytestmark = pytest.mark.usefixtures("models_stay_open")
WORDS = ["der", "Hund", "läuft", "und", "schläft", "nie", "ganz", "weit", "Öl", "x"]


def sentences(seed, count):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 7))) for _ in range(count)]


def write(path, lines):
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with a text that begins with a blank line, and with references."""
    folder = tmp_path_factory.mktemp("cli")
    write(folder / "test.source", ["", *sentences(2, 17)])
    write(folder / "test.target", ["", *(line.upper() for line in sentences(2, 17))])
    return folder


@pytest.fixture(scope="module")
def trained(folder, phrases_run):
    """Paths of one model: a run folder, its `.keras` file and its export."""
    run = shutil.copytree(phrases_run[0], folder / "run")
    # After eight steps, the model gives all texts the same translation. With noise in
    # its weights, it does not.
    model = keras.saving.load_model(run / "model.keras", compile=False)
    rng = np.random.default_rng(3)
    for weight in model.trainable_weights:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
    model.save(run / "model.keras")
    with tiny_export.only_signatures("serving_default", "translate_n_best"):
        result = run_command("export", run, folder / "saved" / "mine")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{folder / 'saved' / 'mine' / '1'}\n"
    return run, run / "model.keras", folder / "saved" / "mine"


def test_run_file_and_export_give_the_same_translations(folder, trained):
    test = ["--source", folder / "test.source", "--reference", folder / "test.target"]
    reports, texts = [], []
    for number, path in enumerate(trained):
        output = folder / f"translations.{number}"
        result = run_command(
            *["evaluate", path, *test, "--output", output, "--json"],
            *["--metric", "chrf", "--metric", "ter"],
            code=0,
        )
        reports.append(json.loads(result.stdout)["results"])
        texts.append(output.read_text(encoding="utf-8").split("\n"))
    assert reports[0] == reports[1] == reports[2]
    assert texts[0] == texts[1] == texts[2]
    assert texts[0][0] == ""
    # The blank line, 17 sentences, and an empty string after the last line break.
    assert len(texts[0]) == 19
    assert len(set(texts[0])) > 5


def test_model_card_describes_the_run(folder, trained, export_only):
    export_only("encode")
    results = [
        {"metric": "bleu", "name": "BLEU", "score": 12.346, "signature": "a|b:c"},
        {"name": "F", "score": 70, "signature": "s", "max_words": None},
        {"name": "F", "score": 75, "signature": "s", "max_words": 40},
        {"name": "perplexity", "score": None, "signature": "infinite"},
    ]
    (folder / "scores.json").write_text(json.dumps({"results": results}))
    run = shutil.copytree(trained[0], folder / "of_files")
    files = load_recipe("files", [f"data.train={{source: {folder}/a, target: b}}"])
    recipe = load_recipe(run / "config.yaml").model_copy(update={"data": files.data})
    dump_recipe(recipe, run / "config.yaml")
    command = ["export", run, folder / "described", "--license", "CC0-1.0"]
    result = run_command(*command, "--score-file", folder / "scores.json", code=0)
    card = (folder / "described" / "1" / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "| train | source a; target b; bidirectional False |" in card
    assert str(folder) not in card
    assert "| tokenizer operations | tensorflow-text |" in card
    assert "| TF-Serving | yes |" in card
    assert "| BLEU | 12.35 | a\\|b:c |" in card
    assert "| F | 70.00 | s |\n| F, at most 40 words | 75.00 | s |" in card
    assert "infinite" not in card
    assert f"| warmup_steps | {recipe.training.warmup_steps} |" in card
    assert card.endswith("## License\n\nCC0-1.0\n")
    assert "| beam_size | " in card and "patience" not in card
    (folder / "scores.json").write_text("{}")
    result = run_command(*command, "--score-file", folder / "scores.json")
    assert "Write the file with `evaluate MODEL ... --json" in error_of(result)


@pytest.mark.fault("F14", "translate: an empty line with score 0 in its place")
@pytest.mark.fault("F19", "one output line, with a warning")
def test_translate_gives_equal_lines_for_run_and_export(folder, trained):
    lines = (folder / "test.source").read_text(encoding="utf-8").split("\n")[:-1]
    source = "\n".join([*lines, " ".join(["Hund"] * 10_000), ""])
    result = run_command("translate", trained[0], "--scores", stdin=source)
    again = run_command("translate", trained[2], stdin=source)
    columns = [line.split("\t", 1) for line in result.stdout.split("\n")[:-1]]
    # The export cuts the long line, which the run translates in segments.
    *found, _ = again.stdout.split("\n")[:-1]
    assert [text for _, text in columns[:-1]] == found
    assert len(columns) == len(lines) + 1
    assert columns[0] == ["0.0000", ""]
    assert all(float(score) < 0 for score, _ in columns[1:])
    (warning,) = re.findall("line .*: .* exceed max_source_length.*", result.stderr)
    assert warning.startswith("line 19: ")


def test_perplexity_matches_the_training_batches(folder, trained):
    files = [folder / "test.source", folder / "test.target"]
    # Omits the blank line and the empty string after the last line break.
    sources, targets = ([*path.read_text("utf-8").split("\n")][1:-1] for path in files)
    write(folder / "s", sources)
    write(folder / "t", targets)
    result = run_command(
        *["evaluate", trained[1], "--source", folder / "s"],
        *["--reference", folder / "t", "--metric", "perplexity", "--json"],
    )
    tokenizer = pipelines.load_tokenizer(trained[0] / "tokenizer")
    pairs = list(zip(sources, targets, strict=True))
    corpus = pipelines.encode_corpus(pairs, tokenizer, tokenizer, folder / "ids")
    model = keras.saving.load_model(trained[1], compile=False)
    expected = evaluation.perplexity(model, pipelines.evaluation_dataset(corpus, 300))
    score = json.loads(result.stdout)["results"][0]["score"]
    assert score == pytest.approx(expected, rel=1e-4)
    result = run_command("score", trained[0], "-s", folder / "s", "-t", folder / "t")
    log_probs = [float(line) for line in result.stdout.split()]
    assert len(log_probs) == 17
    # Each of the 17 targets has an end id.
    num_tokens = sum(map(len, tokenizer.tokenize(targets).to_list())) + 17
    assert math.exp(-sum(log_probs) / num_tokens) == pytest.approx(expected, rel=1e-4)


def test_average_writes_another_file(folder, trained):
    """tests/runs/test_train.py checks the mean."""
    output = folder / "average.keras"
    result = run_command(
        "average", trained[0], "--last", "2", "--output", output, code=0
    )
    assert "averaged 2 checkpoints\n" in result.stderr
    assert f"copy {trained[0] / 'tokenizer'} next to it" in result.stderr
    assert result.stdout == f"{output}\n" and output.is_file()


def test_open_model_reads_the_checkpoint_of_an_unfinished_run(folder, trained):
    run = folder / "unfinished"
    shutil.copytree(trained[0], run)
    (run / "model.keras").unlink()
    run_command("average", trained[0], "--last", "1", "--output", folder / "last.keras")
    last = keras.saving.load_model(folder / "last.keras", compile=False)
    for mine, expected in zip(open_model(run).model.weights, last.weights, strict=True):
        np.testing.assert_array_equal(mine.numpy(), expected.numpy())
    shutil.rmtree(run / "checkpoints")
    assert error_of(run_command("translate", run, stdin="x\n")) == (
        f"error: {run}: this run has no model yet: neither model.keras nor a "
        "checkpoint\n"
    )
    assert "no readable checkpoint" in error_of(run_command("average", run))


@pytest.mark.fault("F21", "translate: an error with both shapes")
def test_translate_names_checkpoints_of_another_shape(folder, trained):
    run = folder / "other_shape"
    shutil.copytree(trained[0], run)
    (run / "model.keras").unlink()
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("d_ff: 24", "d_ff: 23"))
    assert "(16, 24)" in error_of(run_command("translate", run, stdin="x\n"))


@pytest.mark.fault("F21", "translate: an error with both sizes")
def test_open_model_rejects_other_files(folder, trained):
    for name in ("empty", "broken_export/1", "strange"):
        (folder / name).mkdir(parents=True)
    shutil.copytree(trained[0] / "tokenizer", folder / "broken" / "tokenizer")
    content = trained[1].read_bytes()
    (folder / "broken" / "model.keras").write_bytes(content[: len(content) // 2])
    (folder / "broken_export" / "1" / "saved_model.pb").write_bytes(b"no model")
    write_limits(folder / "broken_export" / "1")
    shutil.copy(trained[1], folder / "strange")
    tokenizer = pipelines.train_tokenizer("bpe", sentences(4, 99), 290)
    tokenizer.save(folder / "strange")
    for name, message in {
        "empty": "empty: contains no model",
        "nowhere": "nowhere: no such file",
        "test.source": r"test\.source: neither a \.keras file",
        "broken": r"model\.keras: cannot be loaded",
        "broken_export": "1: cannot be loaded",
        "strange/model.keras": r"has 380 subwords, but the tokeni.* 290",
    }.items():
        with pytest.raises(ModelError, match=message):
            open_model(folder / name)


@pytest.mark.fault("F07", "the command: saved, exit code 130, one line about resuming")
def test_interrupted_training_is_saved(folder):
    run = folder / "interrupted"
    settings = (*SMALL, "training.checkpoint_steps=2", "training.validation_bleu=false")
    settings += ("training.validation_steps=100000",)
    command = ["train", "phrases", *(f"--set={each}" for each in settings)]
    command += ["--output", run, "--set"]
    process = prepared.start(
        *(prepared.COMMAND, *command, "training.steps=100000"),
        stdout=folder / "out",
        stderr=folder / "errors",
    )
    try:
        wait_until(
            lambda: process.exitcode is not None or newest_step(run / "checkpoints"),
            "a checkpoint",
        )
        os.kill(process.pid, signal.SIGINT)
        process.join(120)
    finally:
        process.kill()
    errors = (folder / "errors").read_text()
    assert process.exitcode == 130, errors
    assert "Traceback" not in errors
    assert re.search(r"interrupted; step [\d,]+ is saved\. To resume, run:\n  ", errors)
    # Steps between two scheduled checkpoints are saved, too.
    saved = re.search(r"step ([\d,]+) is saved", errors)[1].replace(",", "")
    assert int(saved) == newest_step(run / "checkpoints")
