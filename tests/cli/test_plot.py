"""The command `plot`; `tests/runs/test_report.py` checks the curves."""

import json

import pytest
from commands import error_of, run_command


@pytest.fixture
def runs(tmp_path):
    """Folder with two runs, `a` and `b`, and the run `empty` without metrics."""
    row = {"split": "train", "step": 100, "seconds": 9.0, "loss": 3.0}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps(row))
        (tmp_path / name / "config.yaml").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.yaml").touch()
    return tmp_path


def test_plot_writes_into_the_run_or_to_one_file_for_all(runs, monkeypatch):
    monkeypatch.chdir(runs)
    result = run_command("plot", "a")
    assert (result.exit_code, result.stdout) == (0, "a/curves.png\n")
    result = run_command("plot", "a", "b")
    assert (result.exit_code, result.stdout) == (0, "curves.png\n")
    result = run_command("plot", "a", "b", "-o", "both.PDF")
    assert (result.exit_code, result.stdout) == (0, "both.PDF\n")
    assert (runs / "both.PDF").read_bytes()[:4] == b"%PDF"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such file or folder"),
        (
            ["a/metrics.jsonl"],
            "a run folder, with a config.yaml. Did you mean a?",
        ),
        (["a", "-o", "b"], "b: must be a file, not a folder"),
        (["a", "-o", "c.jpg"], "--output c.jpg: must end in .png, .pdf, .svg"),
        (["."], ".: must be a run folder, with a config.yaml\n"),
        (["empty"], "empty: metrics.jsonl contains no metrics to plot"),
    ],
)
def test_plot_reports_mistakes(runs, monkeypatch, arguments, message):
    monkeypatch.chdir(runs)
    assert message in error_of(run_command("plot", *arguments))
