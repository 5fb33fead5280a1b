"""Signals during training and validation.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import os
import signal
import time

import pytest
from run_state import assert_same
from waiting import wait_until

# Limit for an interrupted run to end. Without a signal, it would hang for ten minutes.
SECONDS = 60


def interrupt(forks, arguments, folder, hang, *numbers):
    """Sends signals, one per second, to a run that hangs at a point of sabotage.py.

    Returns:
        The exit code, and the seconds from the first signal to the end."""
    reached = folder.parent / "reached"
    process = forks.start(
        *arguments,
        "--output",
        folder,
        sabotage={"hang": hang, "nth": 2, "reached": str(reached)},
    )
    wait_until(reached.exists, f"the hang at {hang!r}", 500)
    started = time.monotonic()
    for number in numbers:
        os.kill(process, number)
        time.sleep(1)
    code, log = forks.wait()
    assert "Traceback" not in log
    return code, time.monotonic() - started


@pytest.mark.slow
@pytest.mark.fault(
    "F07", "in validation: ends within seconds; the next start repeats the validation"
)
@pytest.mark.fault(
    "F05", "interrupted in validation: best score and patience are restored"
)
# The exit code is 128 plus the number of the signal.
@pytest.mark.parametrize(
    ("number", "expected"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130)],
)
def test_interrupted_validation_is_repeated_on_resume(
    forks, quick_arguments, quick_run, tmp_path, number, expected, record_property
):
    run = tmp_path / "run"
    code, seconds = interrupt(forks, quick_arguments, run, "after perplexity", number)
    assert code == expected
    assert seconds < SECONDS
    assert (run / "checkpoints" / "ckpt-8.index").is_file()
    code, log = forks.run(*quick_arguments, "--output", run)
    assert code == 0, log
    assert_same(run, quick_run, same_files=False)
    record_property("happened", f"exit code {expected}, then bit-identical")


@pytest.mark.fault("F07", "a second signal ends the process at once")
@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((signal.SIGTERM, signal.SIGTERM), -signal.SIGTERM),
        ((signal.SIGTERM, signal.SIGINT), 130),
        ((signal.SIGINT, signal.SIGTERM), -signal.SIGTERM),
    ],
)
@pytest.mark.slow
def test_second_signal_ends_the_process_at_once(
    forks, quick_arguments, tmp_path, numbers, expected
):
    run = tmp_path / "run"
    code, seconds = interrupt(forks, quick_arguments, run, "step", *numbers)
    # If SIGTERM killed the process, the code is -15 here. A shell shows 143.
    assert code == expected
    assert seconds < SECONDS
    assert not list((run / "checkpoints").glob("ckpt-*"))
