"""Cores and memory of the machine, and the limits of a container (cgroup v1 and v2)."""

import pytest

from keras_transformer.recipes import machine as machines
from keras_transformer.recipes.machine import Gpu, Machine


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
def test_free_memory_subtracts_what_the_container_uses(monkeypatch, tmp_path, files):
    monkeypatch.setattr(machines, "_CGROUP", tmp_path)
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    # Of the 2,000 bytes in use, 1,000 are cached files.
    assert machines.free_memory() == 2000
    assert machines.find_machine().memory == 3000


def test_free_memory_is_never_negative(monkeypatch, tmp_path):
    monkeypatch.setattr(machines, "_CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("3000")
    (tmp_path / "memory.current").write_text("3100")
    assert machines.free_memory() == 0


def test_free_memory_outside_a_container(monkeypatch, tmp_path):
    monkeypatch.setattr(machines, "_CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("max")
    assert machines.free_memory() > 2**28


@pytest.mark.parametrize(
    ("gpus", "text"),
    [
        ((Gpu(40 << 30, 8.0),), "1 GPU(s) with 40.0 GiB"),
        ((Gpu(40 << 30, 8.0),) * 2, "2 GPU(s) with at least 40.0 GiB each"),
        ((Gpu(None, None),) * 2, "2 GPU(s)"),
    ],
)
def test_machine_describes_its_gpus(gpus, text):
    machine = Machine(4, 8 << 30, gpus)
    assert str(machine) == f"4 CPU core(s), 8.0 GiB of memory, {text}"


def test_find_machine_respects_the_limit_of_a_container(monkeypatch):
    monkeypatch.setattr(machines, "_container_limit", lambda: 3 << 30)
    assert machines.find_machine().memory == 3 << 30
    assert machines.free_memory() <= 3 << 30
    monkeypatch.setattr(machines, "_container_limit", lambda: None)
    assert machines.find_machine().memory > 2**28
    assert machines.find_machine().cores >= 1


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
def test_find_machine_respects_the_cpu_quota(monkeypatch, tmp_path, files, cores):
    monkeypatch.setattr(machines, "_CGROUP", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)))
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert machines.find_machine().cores == cores
