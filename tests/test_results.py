"""Tables of measurements in README and docs are those in benchmarks/results."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
CODE = """
import readme
for path in readme.pages():
    text = path.read_text(encoding="utf-8")
    assert readme.filled(text) == text, f"{path}: run python benchmarks/readme.py"
    print(path.name, len(readme.SECTION.findall(text)))
"""


def test_pages_hold_the_measured_tables():
    found = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=ROOT / "benchmarks",
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    sections = dict(line.split() for line in found.stdout.splitlines())
    assert int(sections["README.md"]) == 6
