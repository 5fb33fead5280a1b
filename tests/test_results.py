"""Tables of measurements in README and docs match benchmarks/results."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Prints the name of each table in README and docs after comparing its page.
CODE = """
import readme
for path in readme.pages():
    text = path.read_text(encoding="utf-8")
    assert readme.fill(text) == text, f"{path}: run python benchmarks/readme.py"
    for name in readme.SECTION.findall(text):
        print(name)
"""
# Compares each stored table with a table formatted from the stored measurements.
REFORMAT = """
import json, formatting, tables
for path in sorted(formatting.RESULTS.glob("*.json")):
    if path.stem != "faults":
        text = tables.markdown(path.stem, json.loads(path.read_text("utf-8")))
        assert path.with_suffix(".md").read_text("utf-8") == text, path.stem
for name in ("ablation", "experiments"):
    path = formatting.RESULTS / f"{name}.csv"
    text = getattr(tables, name)(path)
    assert path.with_suffix(".md").read_text("utf-8") == text, name
"""


def run(code):
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT / "benchmarks",
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.splitlines()


def test_pages_contain_every_table():
    stored = {path.stem for path in (ROOT / "benchmarks" / "results").glob("*.md")}
    assert set(run(CODE)) == stored


def test_tables_match_the_stored_results():
    run(REFORMAT)


def test_log_of_experiments_needs_a_validation_score(tmp_path):
    stored = (ROOT / "benchmarks" / "results" / "experiments.csv").read_text("utf-8")
    head = stored.splitlines()[0]
    path = tmp_path / "experiments.csv"
    code = f"import tables; print(tables.experiments({str(path)!r}))"
    path.write_text(f"{head}\ntask,a setting,3,41.5,,66.4,\n")
    assert run(code)[2] == "| task | a setting | 3 | 41.50 | – | 66 | – |"
    path.write_text(f"{head}\ntask,a setting,3,,,66,41.5\n")
    with pytest.raises(AssertionError, match="row 1 has no validation BLEU"):
        run(code)
