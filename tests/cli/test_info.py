"""`info` and model cards."""

import json
import shutil
import subprocess
import sys

import pytest

from keras_transformer.export import model_card
from keras_transformer.export import run_metadata
from keras_transformer.recipes import load_recipe
from keras_transformer.saving.info import card_tables


@pytest.fixture(scope="module")
def run(phrases_run):
    return phrases_run


@pytest.fixture
def info_json(run_command):
    def run(path):
        result = run_command("info", path, "--json")
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    return run


def test_info_describes_a_run(run, info_json):
    folder, summary = run
    info = info_json(folder)
    assert (info["kind"], info["path"]) == ("run", str(folder))
    assert info["parameters"] == summary["parameters"]
    assert info["architecture"]["d_ff"] == 24
    assert info["vocabulary"] == {"kind": "bpe", "size": 380}
    training = info["training"]
    assert (training["steps"], training["steps wanted"]) == (8, 8)
    assert training["checkpoints"] == [6, 8]
    assert info["decoding"]["beam_size"] == 4
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
    rows = [row for row in rows if row["split"] == "validation"]
    assert [row["step"] for row in rows] == [4, 8]
    assert info["scores"]["last validation"]["perplexity"] == rows[-1]["perplexity"]
    best = max(rows, key=lambda row: row["bleu"])
    assert info["scores"]["best validation"]["bleu"] == best["bleu"]
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
    assert (
        of_checkpoint["architecture"].items() <= {**of_file["architecture"]}.items()
        or of_checkpoint["architecture"]["d_model"] == 16
    )
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(folder / "model.keras", alone)
    shutil.copy(folder / "tokenizer" / "tokenizer.model", alone)
    assert "training" not in info_json(alone / "model.keras")


def test_info_describes_an_export(tiny_export, tiny_model, info_json):
    info = info_json(tiny_export)
    assert (info["kind"], info["path"]) == ("SavedModel", str(tiny_export))
    assert info["parameters"] == tiny_model[0].count_params()
    assert info["architecture"]["num_heads"] == "3"
    assert info["vocabulary"].startswith("bpe, 300 subwords")
    assert info["decoding"]["beam_size"] == "4"
    assert info["license"] == "CC0-1.0"
    assert info["files"]["saved_model.pb"] > 1000


def test_model_card_describes_an_unfinished_run(run, tmp_path, tiny_model):
    """The log has a partial line, a non-finite value and a treebank's score."""
    shutil.copy(run[0] / "config.yaml", tmp_path)
    rows = [
        {"split": "validation", "step": 2, "perplexity": None, "f1": 71.234},
        {"split": "train", "step": 3, "loss": 2.0},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(text + '{"split": "validation", "st')
    facts = run_metadata(tmp_path)
    assert facts["validation"] == rows[0]
    scores = card_tables(model_card(*tiny_model, {}, **facts))["Scores"]
    title = "bracketing F1, validation"
    assert list(scores) == [title]
    assert scores[title][0] == "71.23"
    assert "step 2, beam 1, 3 sentences, labeled" in scores[title][1]
    # A test score of the same name has its own row.
    tested = [{"name": "bracketing F1", "score": 70, "signature": "labeled"}]
    card = model_card(*tiny_model, {}, **facts, scores=tested)
    assert list(card_tables(card)["Scores"]) == ["bracketing F1", title]


def test_model_card_of_records_names_no_folder(tmp_path, tiny_model):
    recipe = load_recipe("phrases", ["data={kind: records, train: /home/x/ids}"])
    card = model_card(*tiny_model, {}, recipe)
    assert card_tables(card)["Data"]["train"] == "ids"
    assert "/home/x" not in card


@pytest.mark.parametrize(
    ("card", "architecture"),
    [
        (
            "## Model\n\nIts parameters are many.\n",
            {"about": "Its parameters are many."},
        ),
        (
            "## Model\n\n| what | value |\n| --- | --- |\n| parameters | 65M |\n",
            {"parameters": "65M"},
        ),
    ],
)
def test_info_reads_an_edited_model_card(tmp_path, info_json, card, architecture):
    (tmp_path / "saved_model.pb").write_bytes(b"")
    (tmp_path / "MODEL_CARD.md").write_text(f"# Model card\n\n{card}")
    info = info_json(tmp_path)
    assert info["architecture"] == architecture
    assert "parameters" not in info


def test_model_card_round_trip(tiny_model):
    scores = [{"name": "BLEU", "score": 12.346, "signature": "a|b:c"}]
    recipe = load_recipe("phrases", ["training.initial_model=/home/x/runs/old"])
    card = model_card(*tiny_model, {"beam_size": 3}, recipe, scores=scores)
    sections = card_tables(card)
    assert sections["Scores"] == {"BLEU": ["12.35", "a|b:c"]}
    assert sections["Search"] == {"beam_size": "3"}
    assert sections["Training"]["initial_model"] == "old"
    assert "/home/x" not in card
    assert sections["License"] == "not stated"


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
        "import sys; from keras_transformer.saving.info import model_info\n"
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
