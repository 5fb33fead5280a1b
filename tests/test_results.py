"""Tables of measurements in README and docs match benchmarks/results."""

import pathlib
import subprocess
import sys

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
