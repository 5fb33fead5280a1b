"""Atomic file writes and disk-full errors."""

import contextlib
import errno
import os
import pathlib
import re
import secrets
import shutil

from keras_transformer.errors import StorageError

# Errors about a full disk, an exceeded quota, and an exceeded file size limit.
_DISK_FULL_TEXTS = [
    os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
]


def require_readable_path(path, error_class):
    """Raises an error if TensorFlow cannot read a SavedModel at a path.

    TensorFlow writes them to any path, but reads them with the path as a glob pattern.
    """
    if re.search(r"\[.*\]|\\", str(path)):
        raise error_class(
            f"{path}: TensorFlow cannot read files in a folder whose path contains "
            "[...] or a backslash. Choose another path"
        )


def temporary_name(path):
    """Returns a hidden name next to `path` that no other process or thread uses.

    It has the same suffix, because Keras infers the file format from the suffix.
    """
    path = pathlib.Path(path)
    # Processes in two containers may have the same id, hence the random part.
    unique = f"{os.getpid()}-{secrets.token_hex(4)}"
    return path.with_name(f".{path.stem}-{unique}{path.suffix}")


@contextlib.contextmanager
def replace_file(path):
    """Yields a temporary path next to `path` and renames it to `path` at the end.

    The new file has the permissions of the old one. After an error, the temporary file
    is removed and `path` is unchanged. After a power failure, `path` is either the old
    file or the new one.
    """
    path = pathlib.Path(path)
    temporary = temporary_name(path)
    try:
        with convert_disk_full_errors(path), _name_target(path, temporary):
            yield temporary
            with contextlib.suppress(OSError):
                if not path.is_symlink():
                    temporary.chmod(path.stat().st_mode & 0o777)
            sync(temporary)
            os.replace(temporary, path)
            sync(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def replace_text(path, text):
    """Writes a text file as `replace_file` does."""
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def replace_folder(folder, must_be_new=False, is_kept=False):
    """Yields a temporary folder next to `folder` and renames it to `folder` at the end.

    After an error, in the block or in the renaming, the temporary folder is removed and
    `folder` is unchanged. After a power failure, `folder` is the old folder, the new
    one, or missing, but never partly written. If `is_kept`, the temporary folder is
    `folder` with the suffix `.part`, which a signal leaves as it is, for the next call.
    """
    folder = pathlib.Path(folder)
    if not folder.name:
        raise StorageError(f"{folder}: must be a new folder with a name")
    temporary = temporary_name(folder)
    old = temporary.with_name(f"{temporary.name}-old")
    if is_kept:
        temporary = folder.with_name(f"{folder.name}.part")
    try:
        parents = folder.parents
        with convert_disk_full_errors(folder), _name_target(folder, *parents):
            folder.parent.mkdir(parents=True, exist_ok=True)
        with convert_disk_full_errors(folder), _name_target(folder, temporary):
            temporary.mkdir(exist_ok=is_kept)
            yield temporary
            sync_tree(temporary)
        with convert_disk_full_errors(folder), _name_target(folder, temporary, folder):
            if must_be_new:
                # This fails if another process has written to `folder` meanwhile.
                os.rename(temporary, folder)
            else:
                _rename_over(temporary, folder, old)
        sync(folder.parent)
    except BaseException as error:
        # A `BlockingIOError` means that another process writes to the folder.
        kept_after = (KeyboardInterrupt, SystemExit, BlockingIOError)
        if not is_kept or not isinstance(error, kept_after):
            remove_tree(temporary)
        raise


def _rename_over(temporary, folder, old):
    """Renames `temporary` to `folder`, and restores the old folder after an error."""
    exists = os.path.lexists(folder)
    if exists:
        # A crash while the old folder is removed must not leave a part of it at
        # `folder`.
        os.rename(folder, old)
    try:
        os.rename(temporary, folder)
    except BaseException:
        if exists:
            os.rename(old, folder)
        raise
    remove_tree(old)


@contextlib.contextmanager
def _name_target(path, *others):
    """Converts errors about one of the `others` to a `StorageError` about `path`."""
    try:
        yield
    except OSError as error:
        if error.filename is None or str(error.filename) not in map(str, others):
            raise
        raise StorageError(_message(path, error.strerror)) from None


def _message(path, reason):
    return f"{path}: cannot be written ({reason})"


def remove_tree(path):
    """Removes a file, a link, or a folder and its contents. Errors are ignored."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)


def sync(path):
    """Waits until the content of a file, or the entries of a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder.
        if error.errno != errno.EINVAL or not os.path.isdir(path):
            raise
    finally:
        os.close(descriptor)


def sync_tree(folder):
    """Calls `sync` for a folder and all files and folders in it."""
    for parent, _, files in os.walk(folder):
        for name in files:
            sync(os.path.join(parent, name))
        sync(parent)


def check_writable(folder):
    """Creates `folder` if it is missing and checks that files can be written to it."""
    folder = pathlib.Path(folder)
    probe = temporary_name(folder / "probe")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with convert_disk_full_errors(folder):
            probe.write_bytes(b"x" * 4096)
    except OSError as error:
        if isinstance(error, FileExistsError | NotADirectoryError):
            raise
        raise StorageError(_message(folder, error.strerror)) from None
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


@contextlib.contextmanager
def convert_disk_full_errors(path):
    """Converts Python's and TensorFlow's errors about a full disk to `StorageError`."""
    try:
        yield
    except StorageError:  # already names the path
        raise
    except Exception as error:
        # TensorFlow's errors have no errno, and Keras drops it for HDF5 and zip files,
        # so the message is searched.
        reason = next((text for text in _DISK_FULL_TEXTS if text in str(error)), None)
        if reason is None:
            raise
        path = getattr(error, "filename", None) or path
        reason = f"{reason}, {_free(path)}"
        raise StorageError(
            f"{_message(path, reason)}. Free space or raise the limit"
        ) from error


def _free(path):
    """Returns the free space of the disk that contains `path`, as text."""
    path = pathlib.Path(path).absolute()
    while not path.exists():
        path = path.parent
    return f"{shutil.disk_usage(path).free:,} bytes free"
