"""Collects the results of tests marked `fault` for docs/results/reliability.md.

    python -m pytest -m fault --write-faults     # with the slow tests
    python benchmarks/readme.py                   # copies the table to the page

A test names the failure that it injects and the expected result:

    @pytest.mark.fault("F04", "warns with the file's name, uses the one before")

It may record a measurement with `record_property("happened", "20 of 20 identical")`;
the default is "as expected". A run replaces the rows of the tests that ran and drops
rows of removed tests, so the table can be filled by several runs.
"""

import ast
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Failures by id, in the order of the table.
FAULTS = {
    "F01": "SIGKILL at random times while checkpoints are written",
    "F02": "SIGKILL after writing a checkpoint, before rotation or the state file",
    "F03": "state file `checkpoint` deleted, empty or garbage",
    "F04": "newest checkpoint truncated or altered",
    "F05": "interrupted mid-epoch and resumed",
    "F06": "resumed with other data, vocabulary, batch size or replicas",
    "F07": "SIGTERM or Ctrl-C during training",
    "F08": "disk full while something is written",
    "F09": "output folder read-only or missing",
    "F10": "NaN or infinity in a batch's loss",
    "F11": "float16 overflow",
    "F12": "every example filtered out, or an empty file",
    "F13": "different line counts in source and target",
    "F14": "empty source line",
    "F15": "blank lines, U+2028, NEL, lone CR, CRLF, BOM, no final newline",
    "F16": "invalid UTF-8",
    "F17": "NUL, control characters, emoji, right-to-left, combining marks",
    "F18": "characters of a language unseen in training",
    "F19": "a sentence of 200,000 characters",
    "F20": "`.gz` truncated or altered",
    "F21": "vocabulary and model that do not match",
    "F22": "special ids, and ids without a subword",
    "F23": "untrusted model files",
    "F24": "corrupt or hostile SentencePiece model",
    "F25": "requests that a server must refuse",
    "F26": "a text alone, in a batch, and by greedy search",
    "F27": "a model that never emits the end id",
    "F28": "killed while exporting into a folder that a server watches",
    "F29": "one worker of two killed",
    "F30": "batch smaller than the number of replicas",
    "F31": "same seed twice; another seed",
    "F32": "model files of an older release",
    "X01": "two processes on one run folder",
    "X02": "resume from an averaged model",
    "X03": "exploding gradients",
    "X04": "a batch without a target token",
    "X05": "fuzzing: recipes, trees, requests, any Unicode",
}


def pytest_addoption(parser):
    parser.addoption(
        "--write-faults",
        action="store_true",
        help="write the results of tests marked with `fault` to benchmarks/results/",
    )


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "fault(id, expected): injects one of fault_table.FAULTS; a row of "
        "docs/results/reliability.md",
    )
    if config.getoption("--write-faults"):
        config.pluginmanager.register(FaultTable(config.rootpath), "fault-table")


class FaultTable:
    """Collects the results of marked tests and writes them at the end."""

    def __init__(self, root):
        self._root = root
        self._faults = {}
        self._slow = {}
        self._ran = {}

    def pytest_collection_modifyitems(self, items):
        for item in items:
            name = item.nodeid.partition("[")[0]
            for marker in item.iter_markers("fault"):
                fault, expected = marker.args
                self._faults.setdefault(name, {})[fault] = expected
            # A test is slow if none of its cases runs by default.
            slow = item.get_closest_marker("slow") is not None
            self._slow[name] = slow and self._slow.get(name, True)

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.partition("[")[0]
        if name not in self._faults:
            return
        row = self._ran.setdefault(
            name, {"passed": 0, "failed": 0, "skipped": [], "happened": []}
        )
        if report.failed:
            row["failed"] += 1
        elif report.skipped:
            row["skipped"].append(str(report.longrepr[2]).removeprefix("Skipped: "))
        elif report.when == "call":
            row["passed"] += 1
            for key, value in report.user_properties:
                if key == "happened" and value not in row["happened"]:
                    row["happened"].append(value)

    def pytest_sessionfinish(self):
        for name, row in self._ran.items():
            row["slow"] = self._slow[name]
            row["faults"] = self._faults[name]
        rows = {**stored_rows(self._root), **self._ran}
        marked = {(path, name) for path, name, _, _ in marked_tests(self._root)}
        rows = {
            name: row
            for name, row in sorted(rows.items())
            if tuple(name.split("::", 1)) in marked
        }
        path = stored(self._root)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", "utf-8")
        path.with_suffix(".md").write_text(table(rows), "utf-8")


def stored(root=ROOT):
    """Returns the path of the stored rows, next to the table."""
    return root / "benchmarks" / "results" / "faults.json"


def stored_rows(root=ROOT):
    """Returns the rows of earlier runs: {"file::test": row}."""
    path = stored(root)
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


def table(rows):
    """Returns `stored_rows` as a Markdown table, sorted by failure, then by test."""
    lines = [
        "| # | fault | expected | outcome | test |\n",
        "| --- | --- | --- | --- | --- |\n",
    ]
    for fault, what in FAULTS.items():
        for name, row in sorted(rows.items()):
            if fault not in row["faults"]:
                continue
            path, test = name.split("::", 1)
            shown = f"[{test}](../../{path})" + (" (slow)" if row["slow"] else "")
            cells = (fault, what, row["faults"][fault], happened(row), shown)
            cells = (cell.replace("|", "\\|") for cell in cells)
            lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)


def happened(row):
    """Returns the cell "outcome" of a row."""
    if row["failed"]:
        return "**failed**"
    if not row["passed"]:
        return "skipped: " + "; ".join(sorted(set(row["skipped"])))
    text = "; ".join(row["happened"]) or "as expected"
    if row["passed"] > 1:
        text += f" ({row['passed']} cases)"
    return text


def marked_tests(root=ROOT):
    """Yields (file, test, fault, expected) of every marker in the sources."""
    for path in sorted((root / "tests").rglob("test_*.py")):
        source = path.read_text("utf-8")
        if "mark.fault(" not in source:
            continue
        for function in ast.walk(ast.parse(source)):
            if not isinstance(function, ast.FunctionDef):
                continue
            for decorator in function.decorator_list:
                for call in ast.walk(decorator):
                    if (
                        isinstance(call, ast.Call)
                        and getattr(call.func, "attr", None) == "fault"
                    ):
                        fault, expected = map(ast.literal_eval, call.args)
                        file = path.relative_to(root).as_posix()
                        yield file, function.name, fault, expected
