"""SIGKILL at random moments while the loop in save_loop.py writes checkpoints.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import os
import random
import re
import signal
import time

import pytest
from waiting import wait_until

KILLS = 20


def last_number(pattern, log):
    """Returns the number in the last match of a pattern in a log, or `None`."""
    found = re.findall(pattern, log.read_text())
    return int(found[-1]) if found else None


@pytest.mark.slow
@pytest.mark.fault(
    "F01", "restarts resume from the newest complete checkpoint, without a traceback"
)
def test_restore_uses_the_newest_complete_checkpoint(forks, tmp_path, record_property):
    run, draw = tmp_path / "run", random.Random(5)
    run.mkdir()
    reached, leftovers = 0, 0
    for _ in range(KILLS):
        forks.log.unlink(missing_ok=True)
        process = forks.start(save_loop=str(run))
        wait_until(
            lambda: (
                forks.log.exists()
                and last_number(r"saved (\d+)", forks.log) is not None
            ),
            "a checkpoint",
        )
        time.sleep(draw.uniform(0, 0.2))
        os.kill(process, signal.SIGKILL)
        code, log = forks.wait()
        assert code == -signal.SIGKILL, log
        assert "Traceback" not in log and "damaged" not in log, log
        restored = last_number(r"restored (\d+)", forks.log)
        # The last reported checkpoint is restored, or a newer one that was complete but
        # not yet reported. The first start restores none, which is reported as 0.
        assert restored in (reached, reached + 1)
        reached = last_number(r"saved (\d+)", forks.log)
        names = {path.name for path in (run / "checkpoints").iterdir()}
        leftovers += any("temp" in name or name[0] == "." for name in names)
    assert reached >= KILLS
    record_property(
        "happened",
        f"{KILLS - 1} of {KILLS - 1} restarts resumed from the newest complete "
        f"checkpoint; {leftovers} of {KILLS} kills left partial files",
    )
