"""Atomic writes of files.py: order of sync and rename, full disks, and links.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import errno
import json
import os
import pathlib
import types

import pytest

from keras_transformer import files as storage
from keras_transformer.errors import StorageError
from keras_transformer.files import (
    check_writable,
    convert_disk_full_errors,
    replace_file,
    replace_folder,
    sync_tree,
)


@pytest.fixture
def events(monkeypatch):
    """List that receives (event, file name) of each sync, rename and deletion."""
    found = []
    fsync, replace, unlink = os.fsync, os.replace, pathlib.Path.unlink

    def note_fsync(number):
        fsync(number)
        path = os.readlink(f"/proc/self/fd/{number}")
        found.append(("sync", os.path.basename(path)))

    def note_replace(source, target):
        replace(source, target)
        found.append(("rename", os.path.basename(target)))

    def note_unlink(path, missing_ok=False):
        if path.exists():
            found.append(("delete", path.name))
        unlink(path, missing_ok)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    monkeypatch.setattr(pathlib.Path, "unlink", note_unlink)
    return found


def test_replace_file_syncs_around_the_rename(tmp_path, events):
    folder = tmp_path / "folder"
    folder.mkdir()
    with replace_file(folder / "a.txt") as temporary:
        temporary.write_text("new")
        name = temporary.name
    assert events == [("sync", name), ("rename", "a.txt"), ("sync", "folder")]


@pytest.fixture
def checkpoints(tmp_path):
    """`Checkpoints` of a model without weights, in the folder `checkpoints`."""
    from keras_transformer.training.checkpoints import Checkpoints

    # Stand-ins with the attributes of a `TrainingModel` that `Checkpoints` reads.
    optimizer = types.SimpleNamespace(
        variables=[], build=lambda variables: None, use_ema=False
    )
    transformer = types.SimpleNamespace(path="t", weights=[], variables=[])
    model = types.SimpleNamespace(
        optimizer=optimizer,
        transformer=transformer,
        trainable_variables=[],
        random_states=list,
    )
    return Checkpoints(model, tmp_path / "checkpoints", keep=1)


@pytest.mark.fault("F23", "links in place of a checkpoint's files are replaced")
@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_checkpoint_replaces_links_of_its_name(tmp_path, checkpoints, link):
    names = ["ckpt-1.npz", "saved.json"]
    checkpoints.folder.mkdir()
    for name in names:
        (tmp_path / name).write_text("somebody's")
        link(tmp_path / name, checkpoints.folder / name)
    checkpoints.save(1, {})
    for name in names:
        assert (tmp_path / name).read_text() == "somebody's"
        assert "somebody" not in (checkpoints.folder / name).read_text("latin-1")


@pytest.mark.fault(
    "F23", "metrics with a hard link are copied before they are extended"
)
def test_metrics_replace_a_hard_link(tmp_path):
    from keras_transformer.training.callbacks import Progress
    from keras_transformer.training.reporting import MetricsLog

    other, run = tmp_path / "other", tmp_path / "run"
    run.mkdir()
    line = json.dumps({"split": "train", "step": 1, "seconds": 1.0}) + "\n"
    other.write_text(line)
    os.link(other, run / "metrics.jsonl")
    log = MetricsLog(run, Progress(step=1))
    log.rewind()
    log.note("train", {})
    assert other.read_text() == line
    assert (run / "metrics.jsonl").read_text().count("\n") == 2


def test_checkpoint_is_synced_before_an_older_one_is_deleted(
    tmp_path, checkpoints, events
):
    checkpoints.save(1, {})
    del events[:]
    checkpoints.save(2, {})
    # The file is synced under a temporary name.
    renamed = events.index(("rename", "ckpt-2.npz"))
    assert events[renamed - 1][0] == "sync"
    assert events[renamed + 1] == ("sync", "checkpoints")
    assert events.index(("delete", "ckpt-1.npz")) > renamed


@pytest.mark.parametrize("name", ["file/x.txt", "n" * 250 + ".txt"])
def test_replace_file_reports_impossible_paths(tmp_path, name):
    (tmp_path / "file").touch()
    with (
        pytest.raises(StorageError, match=r"\.txt: cannot be written"),
        replace_file(tmp_path / name) as temporary,
    ):
        temporary.touch()


def test_replace_folder_needs_a_name():
    with pytest.raises(StorageError, match=r"\.: must be"), replace_folder("."):
        pytest.fail("replaced the current folder")


@pytest.mark.parametrize("replace", [replace_file, replace_folder])
def test_error_names_the_target_instead_of_the_temporary_path(
    tmp_path, replace, monkeypatch
):
    def refuse(path, *_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    # Tests may run as root, who has all permissions, so the refusal is simulated.
    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(StorageError) as error, replace(tmp_path / "a") as temporary:
        refuse(temporary)
    message = f"{tmp_path / 'a'}: cannot be written (Permission denied)"
    assert str(error.value) == message


def test_sync_tree_syncs_every_file_and_folder(tmp_path, events):
    (tmp_path / "1" / "variables").mkdir(parents=True)
    for name in ("1/saved_model.pb", "1/variables/variables.index"):
        (tmp_path / name).touch()
    sync_tree(tmp_path / "1")
    assert {name for _, name in events} == {
        *("1", "variables", "saved_model.pb", "variables.index"),
    }


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "/nowhere/file"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("HDF5: errno = 28, error message = 'No space left on device'"),
    ],
)
def test_full_disk_is_recognized_by_errno_or_text(tmp_path, error):
    with (
        pytest.raises(
            StorageError,
            match=r": cannot be written \(.*, [\d,]+ bytes free\)\. Free space or",
        ),
        convert_disk_full_errors(tmp_path / "a" / "b"),
    ):
        raise error


def test_inner_path_and_other_errors_pass_unchanged(tmp_path):
    with (
        pytest.raises(StorageError, match=r"^inner: cannot be written \(No space left"),
        convert_disk_full_errors(tmp_path),
        convert_disk_full_errors("inner"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(PermissionError), convert_disk_full_errors(tmp_path):
        raise PermissionError(errno.EACCES, "Permission denied")


def test_check_writable_creates_the_folder_and_leaves_no_file(tmp_path):
    check_writable(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        check_writable(tmp_path / "file")


def test_sync_ignores_folders_that_cannot_be_synced(tmp_path, monkeypatch):
    """Some network file systems cannot sync folders. A file must be synced."""

    def refuse(number):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    storage.sync(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Invalid argument"):
        storage.sync(tmp_path / "file")


@pytest.mark.fault("F23", "a folder that is a link is replaced, not its target")
def test_replace_folder_follows_no_link(tmp_path):
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    folder.symlink_to(outside)
    (outside / "a").write_text("somebody's")
    with replace_folder(folder) as temporary:
        (temporary / "a").write_text("new")
    assert {path.name for path in tmp_path.iterdir()} == {"outside", "folder"}
    assert [path.read_text() for path in outside.iterdir()] == ["somebody's"]
    assert not folder.is_symlink() and (folder / "a").read_text() == "new"


def test_replace_folder_is_atomic(tmp_path):
    folder = tmp_path / "new" / "folder"
    with replace_folder(folder) as temporary:
        (temporary / "a").write_text("1")
        assert not folder.exists()
    assert (folder / "a").read_text() == "1"
    with pytest.raises(KeyError), replace_folder(folder) as temporary:
        (temporary / "b").write_text("2")
        raise KeyError
    assert [path.name for path in folder.iterdir()] == ["a"]
    with replace_folder(folder) as temporary:
        (temporary / "c").write_text("3")
    assert [path.name for path in folder.iterdir()] == ["c"]
    assert [path.name for path in folder.parent.iterdir()] == ["folder"]


def test_new_folder_replaces_no_folder(tmp_path):
    folder = tmp_path / "folder"
    message = r"folder: cannot be written \(Directory not empty\)$"
    with (
        pytest.raises(StorageError, match=message),
        replace_folder(folder, must_be_new=True) as temporary,
    ):
        (temporary / "a").write_text("1")
        with replace_folder(folder, must_be_new=True) as other:
            (other / "a").write_text("2")
    assert (folder / "a").read_text() == "2"
    assert list(tmp_path.iterdir()) == [folder]


def test_replace_folder_restores_the_folder_if_the_rename_fails(tmp_path, monkeypatch):
    folder, rename = tmp_path / "folder", os.rename
    folder.mkdir()
    (folder / "a").write_text("old")

    def refuse(source, target):
        if target == folder and not str(source).endswith("-old"):
            raise OSError(errno.EIO, "Input/output error", str(source))
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    message = r"folder: cannot be written \(Input/output error\)$"
    with (
        pytest.raises(StorageError, match=message),
        replace_folder(folder) as temporary,
    ):
        (temporary / "b").write_text("new")
    assert list(tmp_path.iterdir()) == [folder]
    assert [path.name for path in folder.iterdir()] == ["a"]


def test_replace_folder_reports_parents_that_cannot_be_created(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "a", tmp_path / "file" / "a" / "b"):
        with (
            pytest.raises(StorageError, match=f"^{folder}: cannot be written"),
            replace_folder(folder),
        ):
            pytest.fail("the block must not run")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_replace_file_is_atomic(tmp_path):
    path = tmp_path / "model.bin"
    with replace_file(path) as temporary:
        assert temporary.suffix == ".bin" and temporary.parent == tmp_path
        temporary.write_text("old")
    with (
        pytest.raises(RuntimeError, match="half-way"),
        replace_file(path) as temporary,
    ):
        temporary.write_text("ne")
        raise RuntimeError("half-way")
    assert path.read_text() == "old"
    with replace_file(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_writers_with_the_same_process_id_use_different_names(tmp_path):
    path = tmp_path / "model.bin"
    with replace_file(path) as one:
        one.write_text("whole")
        with replace_file(path) as other:
            other.write_text("part")
        assert path.read_text() == "part"
    assert path.read_text() == "whole"
    with replace_folder(tmp_path / "folder") as one:
        (one / "a").write_text("whole")
        with replace_folder(tmp_path / "folder") as other:
            (other / "b").write_text("part")
    assert [each.name for each in (tmp_path / "folder").iterdir()] == ["a"]


def test_replaced_file_keeps_its_permissions(tmp_path):
    path = tmp_path / "secret.txt"
    for mode in (None, 0o600, 0o644):
        if mode is not None:
            path.chmod(mode)
        with replace_file(path) as temporary:
            temporary.write_text("new")
        assert mode is None or path.stat().st_mode & 0o777 == mode
