"""Limits the memory of a process that runs many test files."""

import contextlib
import ctypes
import gc
import math
import pathlib
import re
import resource
import sys

# Bytes by which a process may grow before its garbage is collected. A collection takes
# time, because graphs consist of very many objects in reference cycles.
GROWTH = 100 << 20
# Constant from the C library's malloc.h.
M_ARENA_MAX = -8

_limit = GROWTH


def share_heaps():
    """Limits the C library to two heaps, because each keeps the memory freed in it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)


def free_if_grown(module):
    """Frees the graphs of a test module if the process has grown by `GROWTH`.

    The remaining objects are frozen: the garbage collector skips them from now on.
    """
    global _limit
    if resident_bytes() < _limit:
        return
    for value in vars(module).values():
        is_own = getattr(value, "__module__", None) == module.__name__
        if is_own and hasattr(value, "cache_clear"):
            value.cache_clear()
    _forget_custom_gradients()
    gc.collect()
    gc.freeze()
    # Otherwise, the C library would not return freed memory to the system.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    _limit = resident_bytes() + GROWTH


def resident_bytes():
    """Returns the resident memory of this process, or infinity if it is unknown."""
    try:
        pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return math.inf
    return int(pages) * resource.getpagesize()


def reset_peak():
    """Starts a new measurement of `peak_bytes`, and returns the resident memory."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    return resident_bytes()


def peak_bytes():
    """Returns the highest resident memory of this process since `reset_peak`."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) << 10


def _forget_custom_gradients():
    """Removes custom gradients from TensorFlow's registry, which keeps their graphs."""
    if "tensorflow" not in sys.modules:
        return
    from tensorflow.python.framework.ops import gradient_registry

    functions = gradient_registry._registry
    for name in [each for each in functions if each.startswith("CustomGradient-")]:
        del functions[name]
