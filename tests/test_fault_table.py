"""docs/results/reliability.md lists every failure that the tests inject.

The pytest plugin fault_table.py collects the results of tests marked `fault`.
"""

import os
import subprocess
import sys

import fault_table

# A test file on which the plugin runs, and the rows that it must write.
CASE = """
import pytest

@pytest.mark.fault("F13", "error with both | counts")
@pytest.mark.parametrize("count", [1, 2])
def test_counts(count, record_property):
    record_property("happened", "exit code 2")

@pytest.mark.fault("F04", "a warning")
@pytest.mark.slow
def test_warning():
    assert {passes}

@pytest.mark.fault("F08", "a message")
def test_full():
    pytest.skip("no disk")

def test_other():
    pass
"""
ROWS = [
    "| F04 | newest checkpoint truncated or altered | a warning | as expected "
    "| [test_warning](../../tests/test_case.py) (slow) |",
    "| F08 | disk full while something is written | a message | skipped: no disk "
    "| [test_full](../../tests/test_case.py) |",
    "| F13 | different line counts in source and target | error with both \\| counts "
    "| exit code 2 (2 cases) | [test_counts](../../tests/test_case.py) |",
]


def test_table_contains_markers_and_outcomes(tmp_path):
    case = tmp_path / "tests" / "test_case.py"
    case.parent.mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow: slow\n")
    environment = {
        **os.environ,
        "PYTHONPATH": str(fault_table.ROOT / "tests"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }

    def rows_of_a_run(*arguments):
        command = [sys.executable, "-m", "pytest", "-p", "fault_table", case]
        done = subprocess.run(
            [*command, "--write-faults", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode in (0, 1), done.stdout + done.stderr
        path = fault_table.stored(tmp_path).with_suffix(".md")
        return path.read_text("utf-8").splitlines()[2:]

    case.write_text(CASE.format(passes=True))
    assert rows_of_a_run() == ROWS
    # A later run replaces its own rows and keeps the others.
    case.write_text(CASE.format(passes=False))
    rows = rows_of_a_run("-k", "warning")
    assert rows == [ROWS[0].replace("as expected", "**failed**"), *ROWS[1:]]
    case.write_text(CASE.format(passes=True).replace("test_full", "test_renamed"))
    assert rows_of_a_run("-k", "warning") == [ROWS[0], ROWS[2]]


def test_every_marked_test_has_its_row():
    """If this fails, run `python -m pytest -m fault --write-faults`."""
    marked = set(fault_table.marked_tests())
    assert {fault for _, _, fault, _ in marked} <= set(fault_table.FAULTS)
    rows = fault_table.stored_rows()
    written = {
        (*name.split("::", 1), fault, expected)
        for name, row in rows.items()
        for fault, expected in row["faults"].items()
    }
    assert written == marked
    assert [name for name, row in rows.items() if row["failed"]] == []
    text = fault_table.stored().with_suffix(".md").read_text("utf-8")
    assert text == fault_table.table(rows)
