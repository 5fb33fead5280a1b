"""Cores, memory and GPUs of this machine, and the memory that training takes.

This module does not import TensorFlow or JAX. It finds GPUs only if the backend has
already been imported.
"""

import os
import shutil
import subprocess
import sys
from typing import NamedTuple

import psutil

from keras_transformer.arguments import count_parameters

_CGROUP = "/sys/fs/cgroup"
# Bytes per weight for the weight, its gradient, and two slots of Adam, in float32.
_WEIGHT_BYTES = 16
_FROZEN_BYTES = 4  # per weight that is not trained
_AVERAGE_BYTES = 4  # per weight, for the moving average of the weights
# Activations that a training step stores per layer and per token of one side: the
# number of vectors of width d_model, of vectors of width d_ff, and of rows of attention
# scores per head. They come from measurements with benchmarks/training_memory.py.
_VECTORS = 25
_HIDDEN_VECTORS = 4
_SCORE_ROWS = 3
# Memory of TensorFlow, its compiled graphs and the program.
_BASE_BYTES = 1_100 << 20


class Gpu(NamedTuple):
    """A GPU that the backend finds."""

    # In bytes: the least memory of any GPU, the same value for all. `None` if unknown.
    memory: int | None
    compute_capability: float | None  # `None` if unknown


class Machine(NamedTuple):
    """Hardware that training can use."""

    cores: int  # at most a container's CPU quota
    memory: int | None  # bytes, at most a container's limit; `None` if unknown
    gpus: tuple[Gpu, ...] = ()

    def __str__(self):
        parts = [f"{self.cores} CPU core(s)"]
        if self.memory:
            parts.append(f"{format_bytes(self.memory)} of memory")
        for gpu in self.gpus[:1]:
            number = len(self.gpus)
            text = f"{number} GPU(s)"
            if gpu.memory:
                least, each = ("at least ", " each") if number > 1 else ("", "")
                text += f" with {least}{format_bytes(gpu.memory)}{each}"
            parts.append(text)
        return ", ".join(parts)


def format_bytes(number):
    """Returns a number of bytes as text, such as `7.6 GiB`."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"


def find_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return min(cores, _container_cores() or cores)


def find_machine() -> Machine:
    """Returns the cores, memory and GPUs that this process may use."""
    memory = psutil.virtual_memory().total
    limit = _container_limit()
    return Machine(find_cores(), min(memory, limit) if limit else memory, _find_gpus())


def free_memory() -> int:
    """Returns the bytes of memory that can be allocated now.

    In a container, this is at most the container's limit minus its usage. Cached files
    do not count as used, since the kernel drops them when memory is short.
    """
    free, limit = psutil.virtual_memory().available, _container_limit()
    if limit is None:
        return free
    return max(0, min(free, limit - _container_usage()))


def _container_cores():
    """Returns the CPU quota of a container in whole cores, or `None`."""
    quota, _, period = (_read("cpu.max") or "").strip().partition(" ")
    if not quota:
        quota = _read_number("cpu/cpu.cfs_quota_us")
        period = _read_number("cpu/cpu.cfs_period_us")
    try:
        return max(1, int(quota) // int(period))
    except (TypeError, ValueError):
        return None  # no quota


def _container_limit():
    """Returns the memory limit of a container in bytes, or `None`."""
    return _read_number("memory.max", "memory/memory.limit_in_bytes")


def _container_usage():
    """Returns the bytes of memory that a container uses, without cached files."""
    used = _read_number("memory.current", "memory/memory.usage_in_bytes") or 0
    statistics = _read("memory.stat") or _read("memory/memory.stat") or ""
    # In cgroup v1, only the names with `total_` include nested groups.
    values = dict(line.split() for line in statistics.splitlines())
    prefix = "total_" if "total_cache" in values else ""
    cached = (values.get(f"{prefix}{name}_file", 0) for name in ("active", "inactive"))
    return max(0, used - sum(map(int, cached)))


def _read_number(*names):
    """Returns the number in the first file that contains one, or `None`."""
    texts = ((_read(name) or "").strip() for name in names)
    return next((int(text) for text in texts if text.isdigit()), None)


def _read(name):
    """Returns the text of a cgroup file (of version 2 or 1), or `None`."""
    try:
        with open(os.path.join(_CGROUP, name), encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError):
        return None


def _find_gpus():
    keras, tensorflow = sys.modules.get("keras"), sys.modules.get("tensorflow")
    capabilities = []
    if keras is not None and keras.config.backend() == "jax":
        for device in sys.modules["jax"].local_devices():
            if device.platform == "gpu":
                found = device.compute_capability  # such as "9.0", or AMD's "gfx942"
                is_number = found.replace(".", "").isdigit()
                capabilities.append(float(found) if is_number else None)
    elif tensorflow is not None:
        for gpu in tensorflow.config.list_physical_devices("GPU"):
            details = tensorflow.config.experimental.get_device_details(gpu)
            capability = details.get("compute_capability")
            capabilities.append(capability and float("{}.{}".format(*capability)))
    memory = _smallest_gpu_memory() if capabilities else None
    return tuple(Gpu(memory, capability) for capability in capabilities)


def _smallest_gpu_memory():
    """Returns the memory in bytes of the smallest GPU, or `None`."""
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


def recipe_memory(recipe, num_devices=1, num_parts=None):
    """Estimates the bytes that training a recipe takes on each device, in float32.

    `num_parts` replaces `training.gradient_accumulation_steps` if it is not `None`.
    """
    size = recipe.tokenizer.vocabulary_size
    sizes = recipe.model.model_dump() | {"vocabulary_size": size}
    floats = (
        _VECTORS * sizes["d_model"]
        + _HIDDEN_VECTORS * sizes["d_ff"]
        + _SCORE_ROWS * sizes["num_heads"] * recipe.data.max_length
    )
    has_average = recipe.training.ema_momentum is not None
    weight_bytes = _WEIGHT_BYTES + has_average * _AVERAGE_BYTES
    if recipe.training.lora:
        weight_bytes = _FROZEN_BYTES
    weights = weight_bytes * count_parameters(sizes)
    stages = [stage.settings for stage in recipe.stages]
    # Consistency computes each batch twice.
    tokens = max(each.batch_tokens * (2 if each.consistency else 1) for each in stages)
    tokens /= num_devices * (num_parts or recipe.training.gradient_accumulation_steps)
    return int(_BASE_BYTES + weights + 4 * tokens * sizes["num_layers"] * floats)
