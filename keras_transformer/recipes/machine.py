"""Size of the machine, for choosing automatic settings.

This module does not import TensorFlow. It finds GPUs only if TensorFlow has already
been imported.
"""

import os
import shutil
import subprocess
import sys
from typing import NamedTuple

import psutil


class Gpu(NamedTuple):
    """A GPU that TensorFlow finds."""

    memory: int | None  # bytes of the smallest GPU, `None` if unknown
    compute_capability: float | None  # `None` if unknown


class Machine(NamedTuple):
    """Hardware that training can use."""

    cores: int
    memory: int | None  # bytes, at most a container's limit; `None` if unknown
    gpus: tuple[Gpu, ...] = ()

    def __str__(self):
        parts = [f"{self.cores} CPU core(s)"]
        if self.memory:
            parts.append(f"{format_bytes(self.memory)} of memory")
        for gpu in self.gpus[:1]:
            size = f" with {format_bytes(gpu.memory)}" if gpu.memory else ""
            parts.append(f"{len(self.gpus)} GPU(s){size}")
        return ", ".join(parts)


def format_bytes(number):
    """Returns a number of bytes as text, such as `7.6 GiB`."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number / 2**10:.1f} KiB"


def find_machine() -> Machine:
    """Returns the cores, memory and GPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    memory = psutil.virtual_memory().total
    limit = _container_limit()
    return Machine(cores, min(memory, limit) if limit else memory, _find_gpus())


def free_memory() -> int:
    """Returns the bytes of memory that can be allocated now."""
    free, limit = psutil.virtual_memory().available, _container_limit()
    return min(free, limit) if limit else free


def _container_limit():
    """Returns the memory limit of a container (cgroup v2 or v1) in bytes, or `None`."""
    for path in (
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ):
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read(32).strip()
        except (OSError, ValueError):
            continue
        if text.isdigit():
            return int(text)
    return None


def _find_gpus():
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return ()
    capabilities = []
    for gpu in tensorflow.config.list_physical_devices("GPU"):
        details = tensorflow.config.experimental.get_device_details(gpu)
        capability = details.get("compute_capability")
        if capability is not None:
            capability = float("{}.{}".format(*capability))
        capabilities.append(capability)
    memory = _smallest_gpu_memory() if capabilities else None
    return tuple(Gpu(memory, capability) for capability in capabilities)


def _smallest_gpu_memory():
    """Returns the bytes of the GPU with the least memory, or `None`."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    query = ["--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            [command, *query], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return None
    sizes = [int(line) for line in done.stdout.split("\n") if line.strip().isdigit()]
    return min(sizes) * 2**20 if sizes else None
