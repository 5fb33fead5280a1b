"""Runs that are killed or get signals, and resume, match an uninterrupted run.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import os
import random
import re
import signal
import time

import pytest
from run_state import assert_same
from sabotage import TRAIN_POINTS
from waiting import wait_until

# Each row lists the points (see sabotage.py) at which one run is killed by SIGKILL, one
# after another, and at which call of the function. A number is a time in seconds.
KILLS = [
    [
        ("before the tokenizer is written", 1),
        ("before the ids file is closed", 2),
        ("checkpoint half written", 1),
        ("log line half written", 1),
        ("before rotation", 2),
    ],
    [
        ("step", 2),
        ("checkpoint not renamed", 1),
        ("before decoding in validation", 1),
        ("best.keras half written", 1),
        ("model.keras half written", 1),
    ],
    [
        ("before a checkpoint", 1),
        ("checkpoint not renamed", 2),
        ("after perplexity", 1),
        ("after a checkpoint", 1),
        ("before averaging", 1),
    ],
    [
        ("checkpoint half written", 2),
        ("step", 5),
        ("before decoding in validation", 2),
        ("model.keras not renamed", 1),
        ("model.keras not renamed", 2),
    ],
    [(seconds, 1) for seconds in (0.0, 0.07, 0.3, 0.6, 1.1, 1.7)],
]
# Seconds for an interrupted run to end. Without a signal, it would wait longer.
SECONDS = 60
# Number of kills of the loop in save_loop.py.
LOOPS = 20


@pytest.mark.slow
@pytest.mark.fault("F02", "the newest complete checkpoint is used; bit-identical")
@pytest.mark.fault(
    "F05",
    "killed and resumed: weights, optimizer, loss scale, seeds and log are "
    "bit-identical",
)
@pytest.mark.parametrize("kills", KILLS, ids=range(len(KILLS)))
def test_killed_run_matches_an_uninterrupted_run(
    forks, full, tmp_path, kills, record_property
):
    command, killed = [*full.arguments, "--output", tmp_path / "run"], 0
    for point, nth in kills:
        code, log = forks.run(*command, sabotage={"point": point, "nth": nth})
        assert "Traceback" not in log, log
        # The run may finish before a kill after some seconds.
        assert code == -signal.SIGKILL or (type(point), code) == (float, 0), log
        killed += code == -signal.SIGKILL
    code, log = forks.run(*command)
    assert code == 0, log
    assert_same(tmp_path / "run", full.run)
    record_property("happened", f"killed {killed} times, bit-identical")


def test_runs_are_killed_at_every_point():
    points = {point for kills in KILLS for point, _ in kills}
    assert points >= {*TRAIN_POINTS}


# Signals that a run gets while it waits at a point, one per second, its exit code, and
# whether it saves a checkpoint. If a signal ends the process, the code is negative.
@pytest.mark.slow
@pytest.mark.fault(
    "F07", "in validation: ends within seconds; the next start repeats the validation"
)
@pytest.mark.fault("F07", "a second signal ends the process at once")
@pytest.mark.parametrize(
    ("point", "numbers", "expected", "saves"),
    [
        ("after perplexity", [signal.SIGTERM], 143, True),
        ("after perplexity", [signal.SIGINT], 130, True),
        ("step", [signal.SIGTERM, signal.SIGTERM], -signal.SIGTERM, False),
        ("step", [signal.SIGTERM, signal.SIGINT], 130, False),
        ("step", [signal.SIGINT, signal.SIGTERM], -signal.SIGTERM, False),
    ],
)
def test_signals_end_a_run_within_seconds(
    forks, light, tmp_path, point, numbers, expected, saves, record_property
):
    run, reached = tmp_path / "run", tmp_path / "reached"
    command = [*light.arguments, "--output", run]
    wait = {"point": point, "nth": 2, "hang": True, "reached": str(reached)}
    process = forks.start(*command, sabotage=wait)
    wait_until(reached.exists, f"the process to wait at {point!r}", 500)
    started = time.monotonic()
    for number in numbers:
        os.kill(process, number)
        time.sleep(1)
    code, log = forks.wait()
    assert "Traceback" not in log
    assert code == expected
    assert time.monotonic() - started < SECONDS
    assert (run / "checkpoints" / "ckpt-8.npz").is_file() == saves
    if saves:
        code, log = forks.run(*command)
        assert code == 0, log
        assert_same(run, light.run, same_files=False)
        record_property("happened", f"exit code {expected}, then bit-identical")


def last_number(pattern, log):
    """Returns the number in the last match of a pattern in a log, or `None`."""
    found = re.findall(pattern, log.read_text()) if log.exists() else ()
    return int(found[-1]) if found else None


@pytest.mark.slow
@pytest.mark.fault(
    "F01", "restarts resume from the newest complete checkpoint, without a traceback"
)
def test_restore_uses_the_newest_complete_checkpoint(forks, tmp_path, record_property):
    """SIGKILL at random moments while the loop in save_loop.py writes checkpoints."""
    run, draw, saved = tmp_path / "run", random.Random(5), r"saved (\d+)"
    run.mkdir()
    reached, leftovers = 0, 0
    for _ in range(LOOPS):
        forks.log.unlink(missing_ok=True)
        process = forks.start(save_loop=str(run))
        wait_until(lambda: last_number(saved, forks.log) is not None, "a checkpoint")
        time.sleep(draw.uniform(0, 0.2))
        os.kill(process, signal.SIGKILL)
        code, log = forks.wait()
        assert code == -signal.SIGKILL, log
        assert "Traceback" not in log and "damaged" not in log, log
        # The last reported checkpoint is restored, or a newer one that was complete but
        # not yet reported. The first start restores none, which is reported as 0.
        assert last_number(r"restored (\d+)", forks.log) in (reached, reached + 1)
        reached = last_number(saved, forks.log)
        names = {path.name for path in (run / "checkpoints").iterdir()}
        leftovers += any("temp" in name or name[0] == "." for name in names)
    assert reached >= LOOPS
    record_property(
        "happened",
        f"{LOOPS - 1} of {LOOPS - 1} restarts resumed from the newest complete "
        f"checkpoint; {leftovers} of {LOOPS} kills left partial files",
    )
