"""Tables of measurements in README and docs match benchmarks/results."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Compares each page with its tables, each of which must be on a page, and each table
# with the stored measurements.
CODE = """
import json, formatting, readme, tables
names = set()
for path in readme.pages():
    text = path.read_text(encoding="utf-8")
    assert readme.fill(text) == text, f"{path}: run python benchmarks/readme.py"
    names.update(readme.SECTION.findall(text))
names.add("faults")  # a page of its own
assert names == {path.stem for path in formatting.RESULTS.glob("*.md")}
for path in sorted(formatting.RESULTS.glob("*.json")):
    text = tables.markdown(path.stem, json.loads(path.read_text("utf-8")))
    assert path.with_suffix(".md").read_text("utf-8") == text, path.stem
for name, text in tables.csv_tables().items():
    assert (formatting.RESULTS / f"{name}.md").read_text("utf-8") == text, name
"""


def test_pages_and_tables_match_the_stored_results():
    found = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=ROOT / "benchmarks",
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
