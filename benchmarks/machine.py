"""The machine in general words, and what its matrix products and memory can do."""

import pathlib
import platform
import re
import time

import numpy as np
import turns

FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


def description():
    """Mapping of text and numbers; no name of the machine or of its owner."""
    found = {"system": platform.system(), "python": platform.python_version()}
    path = pathlib.Path("/proc/cpuinfo")
    if path.is_file():
        text = path.read_text()
        found["cores"] = len(re.findall(r"^processor", text, re.MULTILINE))
        flags = set(re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)[1].split())
        found["features"] = [name for name in FEATURES if name in flags]
    path = pathlib.Path("/proc/meminfo")
    if path.is_file():
        kib = int(re.search(r"MemTotal:\s*(\d+)", path.read_text())[1])
        found["memory_gib"] = round(kib / 2**20)
    found["threads"] = turns.THREADS
    return found


def sgemm_turn(size=2048, repeats=6):
    """Rate of a square float32 product under TensorFlow, in GFLOP/s."""
    import tensorflow as tf

    left, right = tf.random.normal([size, size]), tf.random.normal([size, size])
    tf.matmul(left, right)
    start = time.perf_counter()
    for _ in range(repeats):
        product = tf.matmul(left, right)
    product.numpy()
    seconds = time.perf_counter() - start
    return {"rate": 2e-9 * size**3 * repeats / seconds, "seconds": seconds}


def memory_turn(mib=512, repeats=4):
    """Rate at which a sum reads memory, in GB/s."""
    array = np.ones(mib << 18, np.float32)
    start = time.perf_counter()
    for _ in range(repeats):
        array.sum()
    seconds = time.perf_counter() - start
    return {"rate": array.nbytes * repeats / seconds / 1e9, "seconds": seconds}


if __name__ == "__main__":
    turns.serve(lambda **_: sgemm_turn())
