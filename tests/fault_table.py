"""Writes the results of tests marked `fault` for docs/results/reliability.md.

    python -m pytest -m "fault" --write-faults    # all of them, also the slow ones
    python benchmarks/readme.py                   # copies the table to the page

A test names the failure that it injects and the expected result:

    @pytest.mark.fault("F04", "warns with the file's name, uses the one before")

It may record a measurement with `record_property("happened", "20 of 20 identical")`;
the default is "as expected".
"""

import collections
import pathlib

TABLE = pathlib.Path(__file__).resolve().parents[1] / "benchmarks/results/faults.md"
# Failures by id, in the order of the table.
FAULTS = {
    "F01": "SIGKILL at random times while checkpoints are written",
    "F02": "SIGKILL after writing a checkpoint, before rotation",
    "F03": "all checkpoints deleted",
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
        config.pluginmanager.register(FaultTable(), "fault-table")


class FaultTable:
    """Collects the results of marked tests and writes them at the end."""

    def __init__(self):
        self._tests = collections.defaultdict(lambda: {"slow": True, "faults": {}})
        self._outcomes = collections.defaultdict(list)

    def pytest_collection_modifyitems(self, items):
        for item in items:
            for marker in item.iter_markers("fault"):
                test = self._tests[item.nodeid.partition("[")[0]]
                test["faults"].update([marker.args])
                # A test is slow if none of its cases runs by default.
                test["slow"] &= item.get_closest_marker("slow") is not None

    def pytest_runtest_logreport(self, report):
        found = self._outcomes[report.nodeid.partition("[")[0]]
        if report.failed:
            found.append("**failed**")
        elif report.skipped:
            reason = str(report.longrepr[2]).removeprefix("Skipped: ")
            found.append(f"skipped: {reason}")
        elif report.when == "call":
            happened = [v for k, v in report.user_properties if k == "happened"]
            found.append("; ".join(happened) or "as expected")

    def pytest_sessionfinish(self):
        rows = ["| # | fault | expected | outcome | test |", "| --- " * 5 + "|"]
        for fault, what in FAULTS.items():
            for name, test in sorted(self._tests.items()):
                if fault in test["faults"]:
                    path, function = name.split("::", 1)
                    link = f"[{function}](../../{path})" + " (slow)" * test["slow"]
                    outcome = self._outcome(name)
                    cells = fault, what, test["faults"][fault], outcome, link
                    cells = (cell.replace("|", "\\|") for cell in cells)
                    rows.append(f"| {' | '.join(cells)} |")
        TABLE.write_text("\n".join(rows) + "\n", "utf-8")

    def _outcome(self, name):
        found = self._outcomes[name]
        ran = [each for each in found if not each.startswith("skipped")]
        text = "; ".join(dict.fromkeys(ran or found))
        return text + f" ({len(ran)} cases)" * (len(ran) > 1)
