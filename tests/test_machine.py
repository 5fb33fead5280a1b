"""Cores and memory of the machine, the limits of a container, and estimates.

Containers use cgroup v1 or v2. The estimates are of parameters and of memory.
"""

import pytest

from keras_transformer import machine as machines
from keras_transformer.arguments import count_parameters
from keras_transformer.machine import Machine, recipe_memory
from keras_transformer.recipes import load_recipe

FILES = "data.train={source: a, target: b}"


@pytest.fixture
def cgroup(monkeypatch, tmp_path):
    """Function that writes the files of a container's cgroup."""

    def write(files):
        monkeypatch.setattr(machines, "_CGROUP", tmp_path)
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)

    return write


@pytest.mark.parametrize(
    "files",
    [
        {
            "memory.max": "3000",
            "memory.current": "2000",
            "memory.stat": "anon 900\nfile 1100\nactive_file 400\ninactive_file 600",
        },
        {
            "memory/memory.limit_in_bytes": "3000",
            "memory/memory.usage_in_bytes": "2000",
            "memory/memory.stat": "cache 7\nactive_file 3\ninactive_file 4\n"
            "total_cache 1100\ntotal_active_file 400\ntotal_inactive_file 600",
        },
    ],
    ids=["cgroup_v2", "cgroup_v1"],
)
def test_free_memory_subtracts_what_the_container_uses(cgroup, files):
    cgroup(files)
    # Of the 2,000 bytes in use, 1,000 are cached files.
    assert machines.free_memory() == 2000
    assert machines.find_machine().memory == 3000


def test_free_memory_is_never_negative_and_has_no_limit_outside_a_container(cgroup):
    cgroup({"memory.max": "3000", "memory.current": "3100"})
    assert machines.free_memory() == 0
    cgroup({"memory.max": "max"})
    assert machines.free_memory() > 2**28
    assert machines.find_machine().memory > 2**28


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "250000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "1600000 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({}, 8),
    ],
)
def test_find_machine_respects_the_cpu_quota(monkeypatch, cgroup, files, cores):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)))
    cgroup(files)
    assert machines.find_machine().cores == cores


def test_memory_grows_with_the_batch_and_shrinks_with_parts_and_devices():
    def memory(*overrides, devices=1):
        return recipe_memory(load_recipe("files", [FILES, *overrides]), devices)

    one = memory("training.batch_tokens=8000")
    # Doubling the batch does not double the memory, part of which is constant.
    assert memory("training.batch_tokens=16000") > 1.2 * one
    assert memory("training.batch_tokens=16000", devices=2) == pytest.approx(one)
    split = "training.gradient_accumulation_steps=4"
    assert memory("training.batch_tokens=32000", split) == pytest.approx(one, rel=0.2)
    assert memory("training.batch_tokens=8000", "model.size=base") > 2 * one


def test_memory_includes_the_moving_average():
    settings = [FILES, "model.size=tiny", "tokenizer.vocabulary_size=8000"]
    average = ["training.average_checkpoints=1", "training.ema_momentum=0.99"]
    one, other = (load_recipe("files", [*settings, *more]) for more in ([], average))
    size = count_parameters(one.model.model_dump() | {"vocabulary_size": 8000})
    # The average is a float32, 4 bytes, per weight.
    assert recipe_memory(other) - recipe_memory(one) == 4 * size


@pytest.mark.parametrize(
    "setting",
    [
        "training.consistency={kind: rdrop}",
        "training.stages=[{steps: 9}, {steps: 9, consistency: {kind: simcut}}]",
        "training.stages=[{steps: 9, batch_tokens: 16000}, {steps: 9}]",
    ],
)
def test_memory_follows_from_the_largest_batch(setting, monkeypatch):
    """R-Drop and SimCut compute a batch twice."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    machine = Machine(cores=2, memory=4 << 30)
    monkeypatch.setattr(machines, "find_machine", lambda: machine)
    auto = "training.gradient_accumulation_steps=auto"
    settings = [FILES, "model.size=small", "tokenizer.vocabulary_size=8000", auto]
    double = load_recipe("files", [*settings, "training.batch_tokens=16000"])
    other = load_recipe("files", [*settings, "training.batch_tokens=8000", setting])
    assert double.training.gradient_accumulation_steps > 1
    assert recipe_memory(other) == recipe_memory(double)
    assert (
        other.training.gradient_accumulation_steps
        == double.training.gradient_accumulation_steps
    )
