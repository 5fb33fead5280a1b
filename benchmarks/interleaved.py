"""Interleaved measurements of several systems, each in its own process.

A system is a script that serves turns: in each turn, it receives arguments through a
`Channel`, does some work, and sends metrics back. All systems are started and warmed up
first. Then they take turns in a rotating order, so that a change in the machine's speed
affects all of them.
"""

import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

FOLDER = pathlib.Path(__file__).resolve().parent
THREADS = 2


class Channel:
    """A system's connection to the benchmark. It receives turns and sends metrics."""

    def __init__(self):
        self._out = os.fdopen(os.dup(1), "w")
        # Standard output carries the metrics, so the output of libraries is redirected
        # to standard error.
        os.dup2(2, 1)
        self._start = None

    def send(self, **metrics):
        self._out.write(json.dumps({**metrics, "peak_mib": peak_mib()}) + "\n")
        self._out.flush()

    def receive(self):
        """Starts the timer. Returns the next turn's arguments, or `None` at the end."""
        line = sys.stdin.readline()
        self._start = time.perf_counter()
        return json.loads(line) if line else None

    def seconds(self):
        """Returns the seconds since the turn began."""
        return time.perf_counter() - self._start


def serve(turn):
    """Serves turns in a system's process.

    Args:
        turn: Function that runs one turn and returns a mapping of metrics, including
            `rate`, the amount of work per second.
    """
    channel = Channel()
    channel.send()
    while (arguments := channel.receive()) is not None:
        channel.send(**turn(**arguments))


def timed(function, *arguments):
    """Times a call of `function`, which returns `(amount of work, metrics)`.

    Returns a mapping of the seconds, the amount of work per second, and the metrics.
    """
    start = time.perf_counter()
    amount, reported = function(*arguments)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "rate": amount / seconds, **reported}


def peak_mib():
    """Returns the peak resident memory of this process in MiB."""
    # On Linux, ru_maxrss may be the peak of the process that started this one.
    status = pathlib.Path("/proc/self/status")
    if status.is_file():
        return int(re.search(r"VmHWM:\s*(\d+)", status.read_text())[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # macOS: bytes


class System:
    """A process that runs one turn per request.

    Starting it blocks until the script sends its first line of metrics.

    Args:
        name: Name in tables.
        script: Path relative to this folder.
        *arguments: Arguments of the script.
        environment: Additional environment variables. They override the defaults below.
    """

    def __init__(self, name, script, *arguments, environment=None):
        self.name = name
        self.turns = []
        variables = {
            **os.environ,
            "OMP_NUM_THREADS": str(THREADS),
            "TF_NUM_INTRAOP_THREADS": str(THREADS),
            "TF_NUM_INTEROP_THREADS": str(THREADS),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": os.pathsep.join([str(FOLDER), *sys.path[1:]]),
            **(environment or {}),
        }
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, str(FOLDER / script), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=variables,
        )
        self.started = self._answer()

    def turn(self, **arguments):
        """Runs one turn and returns its metrics."""
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self):
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._errors.close()

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise RuntimeError(f"{self.name} exited:\n{self._errors.read()[-3000:]}")
        return json.loads(line)


def take_turns(systems, rounds, arguments_of_round):
    """Runs a warm-up round and `rounds` rounds, whose metrics go to `System.turns`.

    Args:
        systems: List of `System`.
        rounds: Number of measured rounds.
        arguments_of_round: Function from a round's number to the arguments of its
            turns, which are the same for all systems.
    """
    for number in range(rounds + 1):
        # Each round starts with a different system.
        shift = number % len(systems)
        for system in systems[shift:] + systems[:shift]:
            metrics = system.turn(**arguments_of_round(number))
            if number:
                system.turns.append(metrics)
        show = ", ".join(
            f"{each.name} {each.turns[-1]['rate']:,.1f}" if number else each.name
            for each in systems
        )
        print(f"{time.strftime('%H:%M:%S')} round {number}: {show}", file=sys.stderr)


def summary(values):
    """Returns the median, the lowest and the highest value of a list."""
    return {
        "median": statistics.median(values),
        "lowest": min(values),
        "highest": max(values),
    }


def ratios(system, other):
    """Summarizes the rate of `system` divided by the rate of `other`, per round."""
    return summary(
        [
            mine["rate"] / theirs["rate"]
            for mine, theirs in zip(system.turns, other.turns, strict=True)
        ]
    )
