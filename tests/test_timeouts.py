"""A test that hangs, even outside Python, fails with a stack trace."""

import os
import pathlib
import subprocess
import sys

import pytest

TESTS = """
import ctypes
import threading

def test_waits_in_python():
    threading.Event().wait()

def test_waits_in_c():
    mutex = ctypes.create_string_buffer(64)  # zeros are an unlocked mutex
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a mutex of zeros needs Linux")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_hanging_tests_fail_with_a_stack(tmp_path, num_workers):
    (tmp_path / "test_hangs.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text("import hanging\n\nhanging.GRACE = 1\n")
    command = [sys.executable, "-m", "pytest", "-p", "hanging", f"-n{num_workers}"]
    found = subprocess.run(
        [*command, "-o", "timeout=2", "-p", "no:cacheprovider", "test_hangs.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 1
    assert "in test_waits_in_c" in found.stderr
    if num_workers:
        assert "in test_waits_in_python" not in found.stderr
        assert "threading.Event().wait()" in found.stdout
        assert "crashed while running 'test_hangs.py::test_waits_in_c'" in found.stdout
        assert "2 failed" in found.stdout
