"""The machine in general words, and what its matrix products can do."""

import os
import pathlib
import platform
import re
import time

import turns

FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


def description():
    """Mapping of text and numbers; no name of the machine or of its owner."""
    found = {"system": platform.system(), "python": platform.python_version()}
    found |= {"cores": os.cpu_count(), "features": [], "memory_gib": "unknown"}
    path = pathlib.Path("/proc/cpuinfo")
    if path.is_file():
        text = path.read_text()
        found["cores"] = len(re.findall(r"^processor", text, re.MULTILINE))
        flags = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
        flags = flags[1].split() if flags else ()
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


if __name__ == "__main__":
    turns.serve(lambda **_: sgemm_turn())
