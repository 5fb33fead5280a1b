"""Contestants in processes of their own that take turns on the same machine.

A contestant is a script that receives turns and sends figures through a `Channel`. All
are started and warmed up first; then each has a turn, again and again, in changing
order, so that a machine that slows down slows down for all of them.
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
    """The contestant's end: receives turns, sends figures."""

    def __init__(self):
        self._out = os.fdopen(os.dup(1), "w")
        # What libraries print must not be taken for an answer.
        os.dup2(2, 1)
        self._start = None

    def send(self, **figures):
        self._out.write(json.dumps({**figures, "peak_mib": peak_mib()}) + "\n")
        self._out.flush()

    def receive(self):
        """The next turn's arguments, and the clock starts; None: no more turns."""
        line = sys.stdin.readline()
        self._start = time.perf_counter()
        return json.loads(line) if line else None

    def seconds(self):
        """Since the turn began."""
        return time.perf_counter() - self._start


def serve(turn):
    """Runs in the contestant: `turn` of each turn's arguments gives its figures."""
    channel = Channel()
    channel.send()
    while (arguments := channel.receive()) is not None:
        channel.send(**turn(**arguments))


def timed(function, *arguments):
    """The figures of a turn: `function` returns the amount done and what to report."""
    start = time.perf_counter()
    amount, reported = function(*arguments)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "rate": amount / seconds, **reported}


def peak_mib():
    """The highest resident memory of this process so far."""
    # ru_maxrss would begin with that of the process that started this one.
    status = pathlib.Path("/proc/self/status")
    if status.is_file():
        return int(re.search(r"VmHWM:\s*(\d+)", status.read_text())[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # macOS: bytes


class Contestant:
    """A process that works when it is told to.

    Args:
        name: In tables.
        script: Path in this folder.
        *arguments: Of the script.
        environment: Variables besides the threads'.
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
        """Has one turn done; returns its figures."""
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
            raise RuntimeError(f"{self.name} died:\n{self._errors.read()[-3000:]}")
        return json.loads(line)


def take_turns(contestants, rounds, arguments_of_round):
    """Warm-up round 0, then `rounds` rounds; the turns end up in the contestants.

    Args:
        contestants: List of `Contestant`.
        rounds: Number of measured rounds.
        arguments_of_round: Function of the round's number that gives the turn's
            arguments, the same for all.
    """
    for number in range(rounds + 1):
        # Another goes first each time.
        shift = number % len(contestants)
        for contestant in contestants[shift:] + contestants[:shift]:
            figures = contestant.turn(**arguments_of_round(number))
            if number:
                contestant.turns.append(figures)
        show = ", ".join(
            f"{each.name} {each.turns[-1]['rate']:,.1f}" if number else each.name
            for each in contestants
        )
        print(f"{time.strftime('%H:%M:%S')} round {number}: {show}", file=sys.stderr)


def summary(values):
    """Median, lowest and highest of a list."""
    return {
        "median": statistics.median(values),
        "lowest": min(values),
        "highest": max(values),
    }


def ratios(contestant, other):
    """Round by round, how many times `other`'s rate the contestant's is."""
    return summary(
        [
            mine["rate"] / theirs["rate"]
            for mine, theirs in zip(contestant.turns, other.turns, strict=True)
        ]
    )
