"""`info` and model cards."""

import json
import os
import shutil
import subprocess
import sys

import malicious_files
import pytest

from keras_transformer.export import export_translator
from keras_transformer.saving.card import card_license, card_tables
from keras_transformer.saving.info import ModelInfo, flatten_setting
from keras_transformer.saving.open import open_model

# The description of a model of which nothing is known: the default of every field.
EMPTY = ModelInfo(path="", kind="run").model_dump()


@pytest.fixture(scope="module")
def run(phrases_run):
    """Pair of a run folder and the summary of its training."""
    return phrases_run


@pytest.fixture
def info_json(run_command):
    """Function that returns what `info --json` prints about a path."""

    def info_json(path):
        result = run_command("info", path, "--json")
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    return info_json


def test_info_describes_a_run(run, info_json):
    folder, summary = run
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
    assert best == [row for row in rows if row["is_best"]][-1]
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
    of_file = info_json(folder / "model.keras")
    assert of_file["kind"] == "keras file"
    assert of_file["parameters"] == summary["parameters"]
    assert set(of_file["files"]) == {"model.keras", "tokenizer.model"}
    assert "Keras 3." in of_file["written"]
    unfinished = tmp_path / "run"
    shutil.copytree(folder, unfinished)
    (unfinished / "model.keras").unlink()
    of_checkpoint = info_json(unfinished)
    assert of_checkpoint["parameters"] == summary["parameters"]
    widths = [each["architecture"]["d_model"] for each in (of_checkpoint, of_file)]
    assert widths == [16, 16]
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(folder / "model.keras", alone)
    shutil.copy(folder / "tokenizer" / "tokenizer.model", alone)
    described = info_json(alone / "model.keras")
    assert described["training"] == EMPTY["training"] and described["scores"] == []


def test_info_describes_an_export(tiny_export, tiny_model, info_json):
    info = info_json(tiny_export)
    assert (info["kind"], info["path"]) == ("SavedModel", str(tiny_export))
    assert info["parameters"] == tiny_model[0].count_params()
    assert info["architecture"]["num_heads"] == 3
    expected = {"kind": "bpe", "size": 300, "source_size": None}
    assert info["vocabulary"] == expected
    assert info["decoding"]["beam_size"] == 4
    assert info["license"] == "CC0-1.0"
    assert info["files"]["saved_model.pb"] > 1000


@pytest.mark.parametrize(
    ("card", "architecture"),
    [
        (
            "## Model\n\nIts parameters are many.\n",
            {"about": "Its parameters are many."},
        ),
        (
            "## Model\n\n| property | value |\n| --- | --- |\n| parameters | 65M |\n",
            {"parameters": "65M"},
        ),
    ],
)
def test_info_reads_an_edited_model_card(tmp_path, info_json, card, architecture):
    (tmp_path / "saved_model.pb").write_bytes(b"")
    (tmp_path / "MODEL_CARD.md").write_text(f"# Model card\n\n{card}")
    info = info_json(tmp_path)
    assert info["architecture"] == architecture
    assert info["parameters"] is None


def test_card_tables_reads_windows_line_ends():
    card = "# Model card\n\n## Scores\n\nnone\n\n## License\n\nCC0-1.0\n"
    sections = card_tables(card.replace("\n", "\r\n"))
    assert sections["Scores"] == "none"
    assert card_license(sections) == "CC0-1.0"


def test_card_tables_omits_rows_of_one_cell():
    card = "# C\n\n## Scores\n\n| metric |\n| --- |\n| BLEU |\n| chrF | 50.00 | x |\n"
    assert card_tables(card)["Scores"] == {"chrF": ["50.00", "x"]}


def test_flatten_setting_numbers_the_stages():
    stages = [{"steps": 2, "directions": None}, {"steps": 3, "word_dropout": 0.1}]
    assert flatten_setting(stages) == "1: steps 2. 2: steps 3; word_dropout 0.1"


def test_info_prints_text(run, run_command):
    folder, summary = run
    lines = run_command("info", folder).stdout.splitlines()
    assert f"parameters: {summary['parameters']:,}" in lines
    assert "  size: 380" in lines and "  steps: 8" in lines
    assert any(
        line.startswith("size: ") and line[-3:] in (" kB", " MB") for line in lines
    )


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


def test_info_rejects_invalid_paths(run_command, tmp_path):
    (tmp_path / "broken.keras").write_bytes(b"no archive")
    for path, message in (
        (tmp_path / "nowhere", "no such file or folder"),
        (tmp_path, "no model"),
        (tmp_path / "broken.keras", "cannot be loaded"),
    ):
        result = run_command("info", path)
        assert result.exit_code == 2
        assert message in result.stderr and result.stderr.count("\n") == 1


def test_info_has_one_schema_for_all_kinds_of_model(
    run, tmp_path, info_json, export_only
):
    export_only("encode")
    folder, _ = run
    translator = open_model(folder)
    export = export_translator(translator, tmp_path / "export", license="MIT")
    found = [info_json(path) for path in (folder, folder / "model.keras", export)]
    assert [each["kind"] for each in found] == ["run", "keras file", "SavedModel"]
    for info in found:
        assert list(info) == list(EMPTY)
        assert ModelInfo.model_validate(info, strict=True).model_dump() == info
        settings = (info["architecture"], info["data"], info["decoding"])
        for section in (*settings, info["training"]["settings"]):
            assert section
            assert all(
                each is None or isinstance(each, str | int | float)
                for each in section.values()
            )
    of_run, of_file, of_export = found
    assert of_run["scores"] and of_export["scores"]
    for name in ("parameters", "vocabulary"):
        assert of_run[name] == of_file[name] == of_export[name]
    # The description of an export comes from its model card, which omits paths and
    # settings without a value.
    for name in ("architecture", "data", "decoding"):
        shared = of_run[name].keys() & of_export[name].keys()
        assert len(shared) >= 4
        for key in shared:
            assert of_run[name][key] == of_export[name][key], key
    shared = of_export["training"]["settings"].items()
    assert shared <= of_run["training"]["settings"].items()


# Control characters that change a terminal's title, its color, and the text direction.
HOSTILE = "\x1b]0;pwned\x07\x9b31m\u202e\x7f"


def test_info_escapes_control_characters(run, tmp_path, run_command, info_json):
    card = [
        f"## Model\n\n| property | value |\n| --- | --- |\n| {HOSTILE} | {HOSTILE} |\n",
        f"## Scores\n\n| {HOSTILE} |\n| --- |\n| {HOSTILE} | 3 | {HOSTILE} |\n",
        f"## License\n\n{HOSTILE}\n",
    ]
    export = tmp_path / "export"
    export.mkdir()
    (export / "saved_model.pb").touch()
    (export / f"name{HOSTILE}").touch()
    (export / "MODEL_CARD.md").write_text("# Model card\n\n" + "\n".join(card))
    other = tmp_path / "run"
    shutil.copytree(run[0], other)
    text = (other / "config.yaml").read_text()
    text = text.replace("source_locale: en", f"source_locale: {json.dumps(HOSTILE)}")
    (other / "config.yaml").write_text(text)
    for path in (export, other):
        for options in ([], ["--json"]):
            result = run_command("info", path, *options)
            assert result.exit_code == 0, result.stderr
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
    ],
)
def test_info_names_the_damaged_file(run, tmp_path, run_command, name, content, reason):
    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    (folder / name).unlink()
    if content is None:
        os.mkfifo(folder / name)
    else:
        (folder / name).write_bytes(content)
    result = run_command("info", folder)
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr and result.stderr.count("\n") == 1
    assert result.stderr[:-1].isprintable()


def test_info_names_damaged_metadata(run, tmp_path, run_command):
    shutil.copy(run[0] / "tokenizer" / "tokenizer.model", tmp_path)
    members = malicious_files.members(run[0] / "model.keras")
    for content, reason in ((b"[]", "the content"), (b"{}", "'date_saved' is wrong")):
        members["metadata.json"] = content
        malicious_files.write_archive(tmp_path / "model.keras", members.items())
        result = run_command("info", tmp_path / "model.keras")
        assert result.exit_code == 2
        assert f"model.keras: metadata.json: {reason}" in result.stderr


def test_info_does_not_follow_folders_that_are_links(run, tmp_path, info_json):
    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    (tmp_path / "large").write_bytes(bytes(10**7))
    (folder / "outside").symlink_to(tmp_path)
    (folder / "nowhere").symlink_to(tmp_path / "missing")
    assert info_json(folder)["bytes"] < 10**7
