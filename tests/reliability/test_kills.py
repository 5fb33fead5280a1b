"""Runs that are killed by SIGKILL and resumed match an uninterrupted run.

A point is a key of `POINTS`. `nth` is the occurrence of the point at which the process
is killed, by default the first.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import shutil
import signal

import pytest
from run_state import assert_same
from sabotage import POINTS

# Points at which a run without decoding is killed, one after another.
QUICK = [
    {"point": "checkpoint's part half written", "nth": 2},
    {"point": "after perplexity", "nth": 2},
    {"point": "before averaging", "nth": 2},
]
# Each chain lists the points at which one run is killed, one after another.
CHAINS = [
    [
        {"point": "before the tokenizer is written"},
        {"point": "before the ids file is closed", "nth": 2},
        {"point": "checkpoint's part half written"},
        {"point": "log line half written"},
        {"point": "before rotation", "nth": 2},
        {"point": "during rotation"},
    ],
    [
        {"point": "step", "nth": 2},
        {"point": "checkpoint's parts not merged"},
        {"point": "checkpoint not synced"},
        {"point": "before decoding in validation"},
        {"point": "best.keras half written"},
        {"point": "model.keras half written"},
    ],
    [
        {"point": "before a checkpoint"},
        {"point": "before saved.json"},
        {"point": "after perplexity", "nth": 1},
        {"point": "before the state file", "nth": 1},
        {"point": "after a checkpoint"},
        {"point": "before averaging", "nth": 1},
        {"point": "before averaging", "nth": 2},
    ],
    [
        {"point": "checkpoint without index", "nth": 2},
        {"point": "step", "nth": 5},
        {"point": "before decoding in validation", "nth": 2},
        {"point": "before model.keras is renamed into place", "nth": 1},
        {"point": "before model.keras is renamed into place", "nth": 2},
    ],
    [{"point": "random", "delay": delay} for delay in (0.0, 0.07, 0.3, 0.6, 1.1, 1.7)],
]


def kill_and_resume(forks, arguments, kills, folder):
    """Kills a run at each point, resuming it each time, then lets it finish.

    Returns:
        The number of kills.
    """
    killed = 0
    for kill in kills:
        code, log = forks.run(*arguments, "--output", folder, sabotage=kill)
        assert "Traceback" not in log, log
        # With a random delay, the run may finish before the kill.
        assert code == -signal.SIGKILL or (kill["point"], code) == ("random", 0), log
        killed += code == -signal.SIGKILL
    code, log = forks.run(*arguments, "--output", folder)
    assert code == 0, log
    return killed


@pytest.mark.slow
@pytest.mark.fault(
    "F05",
    "killed and resumed: weights, optimizer, loss scale, seeds and log are "
    "bit-identical",
)
def test_killed_run_matches_an_uninterrupted_run(
    forks, quick_arguments, quick_run, tmp_path, record_property
):
    killed = kill_and_resume(forks, quick_arguments, QUICK, tmp_path / "run")
    assert killed == len(QUICK)
    assert_same(tmp_path / "run", quick_run)
    record_property("happened", f"killed {killed} times, bit-identical")
    # Check that `assert_same` would detect a difference.
    other = tmp_path / "other"
    shutil.copytree(quick_run, other)
    log = other / "metrics.jsonl"
    log.write_text(log.read_text().replace('"split": "train"', '"split": "trait"', 1))
    with pytest.raises(AssertionError):
        assert_same(other, quick_run)


@pytest.mark.slow
@pytest.mark.fault(
    "F05",
    "a run killed at each listed point matches an uninterrupted run",
)
@pytest.mark.fault("F02", "the newest complete checkpoint is used; bit-identical")
@pytest.mark.parametrize("chain", range(len(CHAINS)))
def test_run_killed_at_each_point_matches_an_uninterrupted_run(
    forks, all_features_arguments, all_features_run, tmp_path, chain, record_property
):
    kills = CHAINS[chain]
    killed = kill_and_resume(forks, all_features_arguments, kills, tmp_path / "run")
    assert_same(tmp_path / "run", all_features_run)
    points = list(dict.fromkeys(kill["point"] for kill in kills))
    record_property("happened", f"killed {killed} times: {', '.join(points)}")


def test_chains_contain_every_point():
    points = [kill["point"] for chain in CHAINS for kill in chain]
    assert set(points) == {*POINTS, "random"}
    assert len(points) >= 20
