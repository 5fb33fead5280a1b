"""Sizes of TensorFlow's thread pools, on a simulated machine with 6 cores.

TensorFlow fixes the sizes at first use, so each case needs its own process.
"""

import os

import prepared
import pytest

# Arguments: the number of parallel parts, whether TensorFlow has computed before, and
# the number of cores to use, or 0 for all.
# Prints the result of `configure_threads` and the inter-op and intra-op thread counts.
SCRIPT = """
import os, sys
os.sched_getaffinity = lambda process: set(range(6))
import tensorflow as tf
from keras_transformer import training
from keras_transformer import machine
machine._CGROUP = "/nowhere"  # no quota of a container
parts, computed, cores = map(int, sys.argv[1:])
if computed:
    tf.constant(1.0) + 1.0
done = training.configure_threads(parts, cores or None)
threads = tf.config.threading
print(
    done,
    threads.get_inter_op_parallelism_threads(),
    threads.get_intra_op_parallelism_threads(),
)
"""


@pytest.mark.parametrize(
    ("parts", "computed", "cores", "variables", "expected"),
    [
        (2, 0, 0, {}, "True 2 3"),
        (2, 0, 2, {}, "True 2 1"),
        pytest.param(8, 0, 0, {}, "True 8 1", marks=pytest.mark.slow),
        pytest.param(1, 1, 0, {}, "True 0 0", marks=pytest.mark.slow),
        (2, 1, 0, {}, "False 0 0"),
        (2, 0, 0, {"TF_NUM_INTRAOP_THREADS": "5"}, "False 0 0"),
    ],
)
def test_configure_threads_divides_the_cores(
    tmp_path, parts, computed, cores, variables, expected
):
    env = {name: None for name in os.environ if "TF_NUM" in name} | variables
    found = prepared.run(SCRIPT, parts, computed, cores, folder=tmp_path, env=env)
    assert found.stdout.strip() == expected, found.stderr
