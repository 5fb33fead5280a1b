"""Description of the machine and its rate of matrix products."""

import os
import pathlib
import platform
import re
import time

import interleaved

FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


def description():
    """Returns the machine's properties, without its name or owner."""
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
    found["threads"] = interleaved.THREADS
    return found


def summary(described, has_threads=True):
    """Returns the line about the machine below a table.

    Args:
        described: The result of `description`.
        has_threads: Whether to include the number of threads.
    """
    names = {"avx512_bf16": "AVX-512 BF16", "amx_bf16": "AMX"}
    found = [text for name, text in names.items() if name in described["features"]]
    text = f"{described['cores']} cores"
    if found:
        text += f" ({', '.join(found)})"
    if has_threads:
        count = described["threads"]
        text += f", {count} {'thread' if count == 1 else 'threads'}"
    return f"{text}, {described['memory_gib']} GiB"


def sgemm_turn(size=2048, repeats=6):
    """Measures a square float32 matrix product in TensorFlow, in GFLOP/s."""
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
    interleaved.serve(lambda **_: sgemm_turn())
