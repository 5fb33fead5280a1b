"""`info` of runs, files, presets and exports."""

import json
import os
import shutil
import subprocess
import sys

import malicious_files
import pytest
from commands import error_of, run_command

from keras_transformer.export import export_translator
from keras_transformer.opening import open_model
from keras_transformer.saving.info import ModelInfo, flatten_setting

# The description of a model of which nothing is known: the default of every field.
EMPTY = ModelInfo().model_dump()


@pytest.fixture(scope="module")
def run(phrases_run):
    """Pair of a run folder and the summary of its training."""
    return phrases_run


@pytest.fixture
def info_json():
    """Function that returns what `info --json` prints about a path."""

    def info_json(path):
        result = run_command("info", path, "--json", code=0)
        return json.loads(result.stdout)

    return info_json


def test_info_describes_a_run(run, info_json):
    folder, summary = run
    lines = run_command("info", folder).stdout.splitlines()
    assert f"parameters: {summary['parameters']:,}" in lines
    assert "  size: 380" in lines and "  steps: 8" in lines
    info = info_json(folder)
    assert (info["kind"], info["path"]) == ("run", str(folder))
    assert info["parameters"] == summary["parameters"]
    assert info["architecture"]["d_ff"] == 24
    expected = {"kind": "bpe", "size": 380, "source_size": None}
    assert info["vocabulary"] == expected
    training = info["training"]
    assert (training["steps"], training["settings"]["steps"]) == (8, 8)
    # Checkpoints are written at steps 3, 6, and 8, and the last two are kept.
    assert training["checkpoints"] == [6, 8]
    assert info["data"]["kind"] == "phrases"
    assert info["decoding"]["beam_size"] == 1
    rows = [
        json.loads(line)
        for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    ]
    (final,) = [row for row in rows if row["split"] == "final"]
    rows = [row for row in rows if row["split"] == "validation"]
    assert [row["step"] for row in rows] == [4, 8]
    best = min(rows, key=lambda row: (-row["bleu"], row["perplexity"]))
    for which, row in (
        ("final model", final),
        ("last validation", rows[-1]),
        ("best validation by BLEU", best),
    ):
        how = f"{which}, step {row['step']}"
        found = {each["name"]: each for each in info["scores"] if each["how"] == how}
        assert found["BLEU, validation"]["score"] == row["bleu"]
        assert found["perplexity, validation"]["score"] == row["perplexity"]
    files = {
        path: path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }
    assert info["files"]["model.keras"] == files[folder / "model.keras"]
    assert info["bytes"] == sum(files.values())


def test_info_describes_a_file_and_a_checkpoint(run, info_json, tmp_path):
    folder, summary = run
    unfinished, alone = tmp_path / "run", tmp_path / "alone"
    shutil.copytree(folder, unfinished)
    (unfinished / "model.keras").unlink()
    of_checkpoint = info_json(unfinished)
    assert of_checkpoint["parameters"] == summary["parameters"]
    assert of_checkpoint["architecture"]["d_model"] == 16
    alone.mkdir()
    shutil.copy(folder / "model.keras", alone)
    shutil.copy(folder / "tokenizer" / "tokenizer.model", alone)
    of_file = info_json(alone / "model.keras")
    assert of_file["kind"] == "keras file" and "Keras 3." in of_file["written"]
    assert set(of_file["files"]) == {"model.keras", "tokenizer.model"}
    assert of_file["training"] == EMPTY["training"] and of_file["scores"] == []
    assert of_file["vocabulary"]["kind"] == "bpe"


def test_flatten_setting_numbers_the_stages():
    stages = [{"steps": 2, "bidirectional": None}, {"steps": 3, "token_dropout": 0.1}]
    assert flatten_setting(stages) == "1: steps 2. 2: steps 3; token_dropout 0.1"


def test_info_needs_no_tensorflow(run, tiny_export):
    folder, _ = run
    code = (
        "import sys; sys.argv[0] = 'keras-transformer'\n"
        "from keras_transformer.saving.info import model_info\n"
        "for path in sys.argv[1:]: model_info(path)\n"
        "print({'tensorflow', 'keras'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, folder, folder / "model.keras", tiny_export],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "set()\n", done.stderr


def test_info_of_an_export_equals_that_of_its_run(
    run, tmp_path, info_json, export_only
):
    export_only("encode")
    folder, _ = run
    export = export_translator(open_model(folder), tmp_path / "export", license="MIT")
    found = [info_json(path) for path in (folder, folder / "model.keras", export)]
    assert [each["kind"] for each in found] == ["run", "keras file", "SavedModel"]
    for info in found:
        assert list(info) == list(EMPTY)
        assert ModelInfo.model_validate(info, strict=True).model_dump() == info
    of_run, of_file, of_export = found
    assert (of_export["license"], of_export["path"]) == ("MIT", str(export))
    assert of_export["files"]["saved_model.pb"] > 1000
    for name in ("parameters", "architecture", "vocabulary"):
        assert of_run[name] == of_file[name] == of_export[name]
    # An export omits paths and settings without a value.
    assert of_export["data"].items() <= of_run["data"].items()
    for name in ("steps", "label_smoothing", "schedule"):
        settings = [each["training"]["settings"][name] for each in (of_run, of_export)]
        assert settings[0] == settings[1]
    scores = {(each["name"], each["score"]) for each in of_run["scores"]}
    assert {(each["name"], each["score"]) for each in of_export["scores"]} <= scores


# Control characters that change a terminal's title, its color, and the text direction.
HOSTILE = "\x1b]0;pwned\x07\x9b31m\u202e\x7f"


def test_info_escapes_control_characters(run, tmp_path, info_json):
    export = tmp_path / "export"
    export.mkdir()
    (export / "saved_model.pb").touch()
    (export / f"name{HOSTILE}").touch()
    summary = {"architecture": {HOSTILE: HOSTILE}, "license": HOSTILE}
    (export / "summary.json").write_text(json.dumps(summary))
    other = tmp_path / "run"
    shutil.copytree(run[0], other)
    text = (other / "config.yaml").read_text()
    text = text.replace("source_locale: en", f"source_locale: {json.dumps(HOSTILE)}")
    (other / "config.yaml").write_text(text)
    for path in (export, other):
        for options in ([], ["--json"]):
            result = run_command("info", path, *options, code=0)
            assert all(line.isprintable() for line in result.stdout.split("\n"))
    assert info_json(export)["architecture"] == {HOSTILE: HOSTILE}
    assert info_json(other)["data"]["source_locale"] == HOSTILE


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("metrics.jsonl", b"[1, 2]\n{}\n", "metrics.jsonl:1: the content is wrong"),
        ("metrics.jsonl", b'{"a": 1}\n', "metrics.jsonl:1: 'split' is wrong"),
        ("metrics.jsonl", b"\xff\n{}\n", "metrics.jsonl:1: cannot be read"),
        ("metrics.jsonl", None, "metrics.jsonl: must be a regular file"),
        ("config.yaml", b"\x1b: 1\n", "config.yaml"),
        ("config.yaml", b'"\\e[31m": 1\n', r"\x1b[31m"),
        ("summary.json", b'{"license": 3}', "summary.json: 'license' is wrong"),
        ("summary.json", None, "summary.json: must be a regular file"),
        ("model.keras", b"no archive", "model.keras: cannot be loaded"),
    ],
)
def test_info_names_the_damaged_file(run, tmp_path, name, content, reason):
    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    (folder / name).unlink(missing_ok=True)
    if content is None:
        os.mkfifo(folder / name)
    else:
        (folder / name).write_bytes(content)
    error = error_of(run_command("info", folder))
    assert reason in error and error[:-1].isprintable()


def test_info_names_what_is_no_model(run, tmp_path):
    path = tmp_path / "model.keras"
    content = malicious_files.members(run[0] / "model.keras")
    content["metadata.json"] = b"[]"
    malicious_files.write_archive(path, content.items())
    for model, message in (
        (
            tmp_path / "nowhere",
            "no such file or folder, and no packaged model (packaged: europarl_en_fr, ",
        ),
        (tmp_path / "modl.keras", f". Did you mean {path}?"),
        ("tatoeba_ende", ". Did you mean tatoeba_en_de?"),
        (path, "model.keras: refused: metadata.json: the content is wrong"),
        (os.devnull, f"{os.devnull}: neither a .keras file nor a folder"),
    ):
        assert message in error_of(run_command("info", model))
    path.rename(tmp_path / "other.keras")
    assert "contains no model" in run_command("info", tmp_path).stderr


def test_info_does_not_follow_folders_that_are_links(run, tmp_path, info_json):
    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    (tmp_path / "large").write_bytes(bytes(10**7))
    (folder / "outside").symlink_to(tmp_path)
    (folder / "nowhere").symlink_to(tmp_path / "missing")
    assert info_json(folder)["bytes"] < 10**7
