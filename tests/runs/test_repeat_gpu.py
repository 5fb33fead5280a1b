"""GPU memory of `repeat`, on a simulated machine with two GPUs.

TensorFlow fixes the setting at its first operation, so the test needs a new process.
"""

import prepared
from phrases_run import SMALL

# Prints each call of `set_memory_growth`, whether TensorFlow can still be configured at
# that time, and the start of the training process, which fails.
SCRIPT = """
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
    found = prepared.run(SCRIPT, *command, folder=tmp_path)
    assert found.stdout.splitlines() == [
        "gpu:0 True True",
        "gpu:1 True True",
        "training",
    ], found.stderr
