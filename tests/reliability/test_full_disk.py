"""Full or read-only disks: a one-line error, and no old file is lost.

The tests mount a small tmpfs. If mounting is not allowed, training is tested with a
limit on the size of files (RLIMIT_FSIZE), and the other tests are skipped.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile

import numpy as np
import pytest
from run_state import assert_same
from tiny_export import tiny_model

from keras_transformer.cli.lines import open_output
from keras_transformer.errors import StorageError
from keras_transformer.export import export_saved_model
from keras_transformer.runs.average import average_run

SIZE = 8 << 20  # bytes of the tmpfs
# Error line of a command, with the path of the file or folder.
FULL = (
    r"error: {path}\S*: cannot be written \((No space left on device|File too large), "
    r"[\d,]+ bytes free\)\. Free space or raise the limit$"
)


class Disk:
    """A tmpfs of 8 MiB that tests fill up with a file."""

    def __init__(self, folder):
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self, left):
        """Fills the disk except for `left` bytes."""
        free = shutil.disk_usage(self.folder).free
        self._ballast.write_bytes(b"x" * (free - left))

    def empty(self):
        self._ballast.unlink()


@contextlib.contextmanager
def mounted(folder, *options):
    """Mounts a tmpfs at `folder` and yields whether that was possible."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    try:
        done = subprocess.run([*command, *options], capture_output=True)
    except FileNotFoundError:
        yield False
        return
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def disk(tmp_path):
    with mounted(tmp_path / "disk") as is_mounted:
        if not is_mounted:
            pytest.skip("a tmpfs cannot be mounted here")
        yield Disk(tmp_path / "disk")


def assert_disk_full_error(log, path):
    """Asserts that the log has one error line, for a full disk, and no traceback."""
    assert "Traceback" not in log, log
    lines = [line for line in log.splitlines() if "error: " in line]
    assert len(lines) == 1, log
    assert re.search(FULL.format(path=re.escape(str(path))), lines[0]), lines[0]


@pytest.mark.slow
@pytest.mark.fault(
    "F08", "train: one line with path and free bytes; resumes when there is space again"
)
def test_train_keeps_older_checkpoints_if_the_disk_is_full(
    forks, light, tmp_path, record_property
):
    with mounted(tmp_path / "disk") as is_mounted:
        disk = Disk(tmp_path / "disk")
        run = disk.folder / "run"
        shutil.copytree(light.run, run)
        checkpoints = run / "checkpoints"
        # Without its last two checkpoints, the copied run resumes at step 6.
        for path in (checkpoints / "ckpt-9.npz", checkpoints / "ckpt-12.npz"):
            path.unlink()
        size = (checkpoints / "ckpt-6.npz").stat().st_size
        limit = {}
        if is_mounted:
            # best.keras of step 8 fits, but the checkpoint of step 9 does not.
            disk.fill(left=size * 9 // 10)
        else:
            limit = {"limit_bytes": size * 9 // 10}
        arguments = [*light.arguments, "--output", run]
        code, log = forks.run(*arguments, **limit)
        assert code == 2, log
        assert_disk_full_error(log, checkpoints / "ckpt-9.npz")
        # The incomplete checkpoint was removed, and the older one can be read.
        (path,) = checkpoints.glob("*ckpt-*")
        assert path.name == "ckpt-6.npz"
        with np.load(path) as arrays:
            dict(arrays)
        if is_mounted:
            disk.empty()
        code, log = forks.run(*arguments)
        assert code == 0, log
        assert_same(run, light.run)
    how = "a tmpfs of 8 MiB" if is_mounted else "RLIMIT_FSIZE"
    record_property("happened", f"{how}; resumed, bit-identical")


@pytest.mark.fault("F08", "vocabulary and encoded text: one line, no partial files")
# Bytes that are free when the run starts.
@pytest.mark.parametrize("left", [20_000, pytest.param(40_000, marks=pytest.mark.slow)])
def test_train_leaves_no_partial_text_if_the_disk_is_full(
    forks, light_arguments, disk, left
):
    run = disk.folder / "run"
    disk.fill(left)
    code, log = forks.run(*light_arguments, "--output", run)
    assert code == 2
    assert_disk_full_error(log, run)
    assert not [path for path in run.rglob("*") if path.suffix == ".tmp"]
    assert not (run / "cache" / "train").exists()


def write_lines(folder):
    with open_output(folder / "out.de") as write_line:
        for _ in range(1000):
            write_line("x" * 99)


def write_export(folder):
    export_saved_model(*tiny_model(), folder / "saved")


@pytest.mark.fault("F08", "average, export, translate --output: the old file is kept")
@pytest.mark.parametrize(
    ("write", "left", "name"),
    [
        pytest.param(average_run, 8192, "model.keras", marks=pytest.mark.slow),
        pytest.param(write_export, 60_000, "saved", marks=pytest.mark.slow),
        (write_lines, 8192, "out.de"),
    ],
)
def test_failed_write_keeps_the_old_file(request, disk, write, left, name):
    folder = disk.folder / "run"
    if write is average_run:
        shutil.copytree(request.getfixturevalue("light").run, folder)
    else:
        folder.mkdir()
        (folder / "out.de").write_text("old\n")
    before, hidden = visible_files(folder), hidden_files(folder)
    disk.fill(left)
    with pytest.raises(
        StorageError, match=rf"{name}.*: cannot be written .*bytes free"
    ):
        write(folder)
    assert visible_files(folder) == before
    assert hidden_files(folder) == hidden  # no temporary file, perhaps a lock


def hidden_files(folder):
    return {path for path in folder.rglob(".*") if path.is_file()}


def visible_files(folder):
    """Returns the content of each file, except the log of metrics."""
    paths = (path for path in folder.rglob("[!.]*") if path.name != "metrics.jsonl")
    return {path: path.read_bytes() for path in paths if path.is_file()}


@pytest.mark.fault("F09", "an error before any input is read")
def test_train_reports_a_read_only_disk_at_once(forks, light_arguments, tmp_path):
    with mounted(tmp_path / "disk", "-r") as is_mounted:
        if not is_mounted:
            pytest.skip("a tmpfs cannot be mounted here")
        run = tmp_path / "disk" / "run"
        code, log = forks.run(*light_arguments, "--output", run)
        assert code == 2
        assert log.splitlines()[-1] == (
            f"error: {run}: cannot be written (Read-only file system)"
        )


@pytest.mark.fault(
    "F09", "a folder of another user: one line about the missing permission"
)
@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_train_reports_a_folder_of_another_user(forks, light_arguments):
    if forks.run("train", user=65534)[0] != 0:
        pytest.skip("another user cannot read the package here")
    # Other users, such as 65534 (`nobody`), cannot enter pytest's temporary folder.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        for run in (folder, f"{folder}/run"):
            code, log = forks.run(*light_arguments, "--output", run, user=65534)
            assert code == 2, log
            assert log.splitlines()[-1] == (
                f"error: {run}: cannot be written (Permission denied)"
            )
