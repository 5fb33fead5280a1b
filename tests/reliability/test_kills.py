"""Runs killed by SIGKILL and started again end as the one that nothing interrupted."""

import shutil
import signal

import pytest
from run_state import assert_same
from sabotage import POINTS

QUICK = [
    {"point": "checkpoint's part half written", "nth": 2},
    {"point": "perplexity", "nth": 2},
    {"point": "averaging", "nth": 2},
]
# One run each, killed at one point after the other.
CHAINS = [
    [
        {"point": "tokenizer is written"},
        {"point": "text is encoded", "nth": 2},
        {"point": "checkpoint's part half written"},
        {"point": "line of the log"},
        {"point": "before rotation", "nth": 2},
        {"point": "in rotation"},
    ],
    [
        {"point": "step", "nth": 2},
        {"point": "checkpoint's parts not merged"},
        {"point": "checkpoint not synced"},
        {"point": "decoding in validation"},
        {"point": "best.keras half written"},
        {"point": "model.keras half written"},
    ],
    [
        {"point": "before a checkpoint"},
        {"point": "before saved.json"},
        {"point": "perplexity", "nth": 1},
        {"point": "before the state file", "nth": 1},
        {"point": "after a checkpoint"},
        {"point": "averaging", "nth": 1},
        {"point": "averaging", "nth": 2},
    ],
    [
        {"point": "checkpoint without index", "nth": 2},
        {"point": "step", "nth": 5},
        {"point": "decoding in validation", "nth": 2},
        {"point": "before model.keras is named", "nth": 1},
        {"point": "before model.keras is named", "nth": 2},
    ],
    [{"point": "random", "delay": delay} for delay in (0.0, 0.07, 0.3, 0.6, 1.1, 1.7)],
]


def kill_and_resume(forks, arguments, kills, folder):
    """Starts a run until it was killed at each point, and then to its end.

    Returns:
        How often it was killed.
    """
    killed = 0
    for kill in kills:
        code, log = forks.run(*arguments, "--output", folder, sabotage=kill)
        assert "Traceback" not in log, log
        # A random moment may come after the end.
        assert code == -signal.SIGKILL or (kill["point"], code) == ("random", 0), log
        killed += code == -signal.SIGKILL
    code, log = forks.run(*arguments, "--output", folder)
    assert code == 0, log
    return killed


@pytest.mark.slow
@pytest.mark.fault(
    "F05",
    "killed and started again, weights, slots, scale, seeds, log equal bit by bit",
)
def test_a_run_killed_again_and_again_ends_as_if_it_had_not_been(
    forks, train_quickly, quick_run, tmp_path, record_property
):
    killed = kill_and_resume(forks, train_quickly, QUICK, tmp_path / "run")
    assert killed == len(QUICK)
    assert_same(tmp_path / "run", quick_run)
    record_property("happened", f"killed {killed} times, equal bit by bit")
    # The comparison can fail.
    other = tmp_path / "other"
    shutil.copytree(quick_run, other)
    log = other / "metrics.jsonl"
    log.write_text(log.read_text().replace('"split": "train"', '"split": "trait"', 1))
    with pytest.raises(AssertionError):
        assert_same(other, quick_run)


@pytest.mark.slow
@pytest.mark.fault(
    "F05", "killed at each of these points, also in every part of a checkpoint's write"
)
@pytest.mark.fault("F02", "the newest whole checkpoint is used; equal bit by bit")
@pytest.mark.parametrize("chain", range(len(CHAINS)))
def test_killed_at_every_point(
    forks, train_whole, whole_run, tmp_path, chain, record_property
):
    kills = CHAINS[chain]
    killed = kill_and_resume(forks, train_whole, kills, tmp_path / "run")
    assert_same(tmp_path / "run", whole_run)
    points = list(dict.fromkeys(kill["point"] for kill in kills))
    record_property("happened", f"killed {killed} times: {', '.join(points)}")


def test_the_chains_hold_every_point():
    tried = [kill["point"] for chain in CHAINS for kill in chain]
    assert set(tried) == {*POINTS, "random"}
    assert len(tried) >= 20
