"""`compare` on output folders of `repeat`."""

import json
import os
import re
import shutil

import pytest
import yaml
from commands import error_of, run_command

from keras_transformer.evaluation import bleu
from keras_transformer.recipes import dump_recipe, load_recipe


def write_report_of_two_seeds(output, *settings):
    """Writes the files of `repeat` that `compare` reads."""
    numbers = dict.fromkeys(("bleu", "chrf", "perplexity", "seconds"), 1.0)
    rest = {"bleu_interval": [0.0, 1.0], "parameters": 1, "signatures": []}
    for seed in (1, 2):
        folder = output / f"seed-{seed}"
        folder.mkdir(parents=True)
        (folder / "test.txt").write_text("Ein Hund schläft, sehr fest.\nzwei\n")
        (folder / "references.txt").write_text("ein Hund schläft , fest.\ndrei\n")
    dump_recipe(load_recipe("phrases", settings), output / "config.yaml")
    seeds = [{"seed": seed, **numbers, **rest} for seed in (1, 2)]
    (output / "results.json").write_text(json.dumps({"seeds": seeds}))


def compare_folders(tmp_path, settings, other_settings, *options):
    """Runs `compare` on two folders of the same texts with different recipes."""
    folders = tmp_path / "a", tmp_path / "b"
    for folder, each in zip(folders, (settings, other_settings), strict=True):
        shutil.rmtree(folder, ignore_errors=True)
        write_report_of_two_seeds(folder, *each)
    return run_command("compare", *folders, "--samples=9", *options)


def test_compare_scores_folders_with_the_settings_of_their_recipe(tmp_path):
    settings = ["evaluation.tokenize=none", "evaluation.lowercase=true"]
    for options, tokenize, lowercase in (
        ([], "none", True),
        (["--tokenize=13a"], "13a", True),
        (["--tokenize=char", "--no-lowercase"], "char", False),
    ):
        found = compare_folders(tmp_path, settings, settings, *options, "--json")
        assert found.exit_code == 0, found.output
        (result,) = json.loads(found.stdout)
        lines = [
            (tmp_path / "a" / "seed-1" / name).read_text().splitlines()
            for name in ("test.txt", "references.txt")
        ]
        expected = bleu(*lines, tokenize, lowercase)
        scores = [each["score"] for each in result["systems"]]
        assert scores == pytest.approx([expected.score] * 2)
        seeds = "  mean over seeds (number per system: 2, 2)"
        assert result["signature"].replace("bs:9|seed:12345|", "") == (
            expected.signature + seeds
        )


def test_compare_prints_the_signature_of_sacrebleu(tmp_path):
    """It matches the signature for files, which sacreBLEU computes."""
    settings = ["evaluation.tokenize=char", "evaluation.lowercase=true"]
    for options in (["--seed=7"], ["--samples=20"]):
        found = compare_folders(tmp_path, settings, settings, *options)
        folder = tmp_path / "a" / "seed-1"
        shutil.copy(folder / "test.txt", tmp_path / "copy")
        command = ["compare", "-r", folder / "references.txt", folder / "test.txt"]
        command += [tmp_path / "copy", "--samples=9", "--tokenize=char", "--lowercase"]
        expected = run_command(*command, *options)
        assert found.exit_code == expected.exit_code == 0
        head, _, seeds = found.stdout.splitlines()[0].rpartition("  mean over ")
        assert head == expected.stdout.splitlines()[0]
        assert seeds == "seeds (number per system: 2, 2)"


def test_compare_refuses_folders_with_different_settings(tmp_path):
    for key, values, choice, option in (
        ("tokenize", ("none", "zh"), "--tokenize", "--tokenize=none"),
        (
            *("lowercase", ("true", "false")),
            *("--lowercase or --no-lowercase", "--no-lowercase"),
        ),
    ):
        settings = [[f"evaluation.{key}={value}"] for value in values]
        found = compare_folders(tmp_path, *settings)
        error = error_of(found)
        assert error.startswith(f"error: {tmp_path}/a and {tmp_path}/b: ")
        shown = " and ".join(json.dumps(yaml.safe_load(value)) for value in values)
        message = f"evaluation.{key}, {shown}. Choose one with {choice}\n"
        assert error.endswith(message)
        found = compare_folders(tmp_path, *settings, option)
        assert found.exit_code == 0, found.output


def test_compare_needs_the_recipe_unless_options_replace_it(tmp_path):
    assert compare_folders(tmp_path, [], []).exit_code == 0
    (tmp_path / "b" / "config.yaml").unlink()
    command = ["compare", tmp_path / "a", tmp_path / "b", "--samples=9"]
    error = error_of(run_command(*command))
    assert f"{tmp_path}/b/config.yaml: no such file" in error
    run_command(*command, "--tokenize=13a", "--lowercase", code=0)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["test.txt", "references.txt"])
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.unlink(), r"{name}: no such file"),
        (lambda path: path.unlink() or os.mkfifo(path), r"{name}: must be a regular"),
        (lambda path: path.write_bytes(b"\xff\n"), r"{name}: not UTF-8 \(byte 0xff"),
        (
            lambda path: path.write_bytes(path.read_bytes().partition(b"\n")[2]),
            r"test\.txt: must have one line per reference\. Received: \d+ lines",
        ),
    ],
    ids=["missing", "pipe", "not UTF-8", "shorter"],
)
def test_compare_names_a_damaged_file(tmp_path, name, damage, reason):
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        write_report_of_two_seeds(folder)
    command = ["compare", *folders, "--samples=9"]
    run_command(*command, code=0)
    damage(folders[1] / "seed-1" / name)
    error = error_of(run_command(*command))
    assert re.search(reason.format(name=re.escape(f"seed-1/{name}")), error)
