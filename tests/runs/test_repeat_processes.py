"""Processes of `repeat`: signals, on which trainings save and end, and GPU memory."""

import json
import os
import signal
import sys

import prepared
import psutil
import pytest
from phrases_run import DATA_AND_MODEL, SMALL
from waiting import newest_step, wait_until

from keras_transformer.machine import find_machine

# Stands in for the training of a seed. It records signals that are not ignored and,
# after SIGTERM, needs a second to save. With `hangs` in the environment, it never ends
# by itself.
TRAINING = """#!{python}
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--output") + 1])
received = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, lambda number, frame: received.append(number))
folder.mkdir(exist_ok=True)
(folder / "started").write_text(str(os.getpid()))
while signal.SIGTERM not in received:
    time.sleep(0.01)
(folder / "stopping").touch()
time.sleep(600 if "hangs" in os.environ else 1)
(folder / "saved").write_text(str(list(map(int, received))))
sys.exit(143)
"""
# The command line in a process group of its own, like the foreground job of a terminal,
# with `sys.argv[1]` as the Python that trains. A shell may have started the tests with
# signals ignored.
COMMAND = """
import os, signal, sys
os.setpgid(0, 0)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from keras_transformer.cli import main
sys.executable = sys.argv.pop(1)
main()
"""
ENDLESS = [
    *(*DATA_AND_MODEL, "training.steps=1000000", "training.checkpoint_steps=1000000"),
    "training.validation_steps=1000000",
]


class Repeat:
    """A `repeat` in its own process group."""

    def __init__(self, folder, python, jobs, **environment):
        self.seeds = [folder / f"seed-{seed}" for seed in range(1, jobs + 1)]
        self.log = folder.with_name("log")
        self.process = prepared.start(
            COMMAND,
            *(python, "repeat", "phrases", f"--output={folder}", f"--jobs={jobs}"),
            *("--seeds=1,2", *(f"--set={each}" for each in ENDLESS)),
            env=environment,
            cwd=folder.parent,
            stdout=os.devnull,
            stderr=self.log,
        )

    def send(self, number):
        """Sends a signal to the process group, as a terminal does."""
        os.killpg(self.process.pid, number)

    def wait(self):
        """Returns the exit code and the output to standard error."""
        self.process.join(120)
        return self.process.exitcode, self.log.read_text()

    def trainings(self):
        """Waits until all trainings have started, and returns their processes."""
        files = [seed / "started" for seed in self.seeds]
        wait_until(
            lambda: all(each.exists() and each.read_text() for each in files),
            "the start of the trainings",
        )
        return [psutil.Process(int(each.read_text())) for each in files]

    def wait_for(self, name):
        """Waits until the folders of all seeds contain a file."""
        wait_until(lambda: all((each / name).exists() for each in self.seeds), name)


@pytest.fixture
def start(tmp_path):
    """Function that starts a `Repeat`. All processes are killed after the test."""
    python = tmp_path / "python"
    python.write_text(TRAINING.format(python=sys.executable))
    python.chmod(0o755)
    started = []

    def start_repeat(jobs, python=python, **environment):
        if jobs > find_machine().cores:
            pytest.skip(f"needs {jobs} CPU cores")
        started.append(Repeat(tmp_path / "seeds", python, jobs, **environment))
        return started[-1]

    yield start_repeat
    for each in started:
        each.process.kill()
    for process in psutil.process_iter(["cmdline"]):
        if any(str(tmp_path) in word for word in process.info["cmdline"] or ()):
            process.kill()


@pytest.mark.parametrize(
    ("jobs", "signals", "exit_code", "is_saved"),
    [
        (1, [signal.SIGINT], 130, True),
        (2, [signal.SIGHUP], 129, True),
        # Ctrl-Z pauses all processes.
        (2, [signal.SIGTSTP, signal.SIGINT], 130, True),
        # A second signal kills the trainings.
        (2, [signal.SIGINT, signal.SIGINT], 130, False),
    ],
)
def test_trainings_receive_one_signal_and_save(
    start, jobs, signals, exit_code, is_saved
):
    repeat = start(jobs, **({} if is_saved else {"hangs": "1"}))
    trainings = repeat.trainings()
    processes = [psutil.Process(repeat.process.pid), *trainings]
    for number in signals:
        repeat.send(number)
        if number == signal.SIGTSTP:
            wait_until(
                lambda: all(p.status() == psutil.STATUS_STOPPED for p in processes),
                "the pause of all processes",
            )
            repeat.send(signal.SIGCONT)
        elif not is_saved:
            repeat.wait_for("stopping")
    code, log = repeat.wait()
    assert code == exit_code, log
    assert "Traceback" not in log
    assert not any(each.is_running() for each in trainings)
    for folder in repeat.seeds if is_saved else ():
        assert json.loads((folder / "saved").read_text()) == [signal.SIGTERM]
    if code == 130 and is_saved:
        assert "interrupted. To complete" in log


@pytest.mark.slow  # Two real trainings.
def test_interrupted_trainings_save_checkpoints(start):
    repeat = start(2, python=sys.executable)
    repeat.wait_for("metrics.jsonl")
    repeat.send(signal.SIGINT)
    code, log = repeat.wait()
    assert code == 130, log
    assert all(newest_step(each / "checkpoints") > 0 for each in repeat.seeds)


# On a simulated machine with two GPUs, prints each call of `set_memory_growth`, whether
# TensorFlow can still be configured at that time, and the start of the training
# process, which fails. TensorFlow fixes the setting at its first operation.
GPUS = """
import os, subprocess, sys
import tensorflow as tf
from keras_transformer.cli import main
from keras_transformer import machine

def can_be_configured():
    try:
        tf.config.threading.set_inter_op_parallelism_threads(1)
    except RuntimeError:
        return False
    return True

def set_memory_growth(gpu, enable):
    print(gpu, enable, can_be_configured(), flush=True)

machine._find_gpus = lambda: ()
tf.config.list_physical_devices = {"GPU": ["gpu:0", "gpu:1"], "CPU": []}.get
tf.config.experimental.set_memory_growth = set_memory_growth
start = subprocess.Popen
def start_process(command, **options):
    print("training", flush=True)
    return start(["false"])
subprocess.Popen = start_process
main()
"""


def test_repeat_leaves_gpu_memory_to_the_trainings(tmp_path):
    command = ["repeat", "phrases", "--seeds=1", f"--output={tmp_path / 'seeds'}"]
    command += [f"--set={each}" for each in SMALL]
    found = prepared.run(GPUS, *command, folder=tmp_path)
    assert found.stdout.splitlines() == [
        "gpu:0 True True",
        "gpu:1 True True",
        "training",
    ], found.stderr
