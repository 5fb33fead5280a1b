"""A killed export leaves no version for a server. Later exports remove its files.

An export is written to a folder `.writing-*` and then renamed to its version number.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import os
import signal
import time

import pytest
from sabotage import EXPORT_POINTS
from waiting import wait_until

# Files of a complete version.
REQUIRED_FILES = (
    "saved_model.pb",
    "MODEL_CARD.md",
    "summary.json",
    "variables/variables.index",
    "assets.extra/tf_serving_warmup_requests",
)


def versions(folder):
    """Returns the versions that a server would load. Each must be complete."""
    found = [path for path in folder.iterdir() if path.name.isdecimal()]
    for path in found:
        missing = [name for name in REQUIRED_FILES if not (path / name).is_file()]
        assert missing == [], path
    return sorted(path.name for path in found)


def watch(forks, is_valid):
    """Asserts `is_valid()` until the command ends. Returns the number of checks."""
    checks = 0

    def is_over():
        nonlocal checks
        checks += 1
        assert is_valid()
        return forks.is_over()

    wait_until(is_over, "the export to end")
    return checks


@pytest.mark.slow
@pytest.mark.fault("F28", "a server never sees a partial version")
def test_killed_export_never_shows_a_partial_version(
    forks, light, tmp_path, record_property
):
    folder = tmp_path / "saved"
    folder.mkdir()
    command = ["export", light.run, folder]
    seen = 0
    for point in EXPORT_POINTS:
        forks.start(*command, sabotage={"point": point})
        seen += watch(forks, lambda: versions(folder) == [])
        code, log = forks.wait()
        assert code == -signal.SIGKILL, log
        assert versions(folder) == []
    abandoned = list(folder.glob(".writing-*"))
    assert len(abandoned) == len(EXPORT_POINTS)
    # Another export removes leftovers that are older than an hour. The first one is
    # new, so a process might still be writing it.
    for path in abandoned[1:]:
        os.utime(path, (time.time() - 7200,) * 2)
    forks.start(*command)
    seen += watch(forks, lambda: versions(folder) in ([], ["1"]))
    code, log = forks.wait()
    assert code == 0, log
    assert versions(folder) == ["1"]
    assert list(folder.glob(".writing-*")) == abandoned[:1]
    record_property(
        "happened",
        f"killed {len(EXPORT_POINTS)} times; none of {seen:,} checks of the folder "
        "found a partial version; older leftovers were removed",
    )
