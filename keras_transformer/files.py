"""Files and folders that appear whole or not at all, and disks that are full."""

import contextlib
import errno
import os
import pathlib
import shutil

from keras_transformer.errors import StorageError

# No space, a quota, or a limit on a file's size.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FULL_TEXTS = tuple(os.strerror(number) for number in _FULL)


@contextlib.contextmanager
def replace_file(path):
    """Yields a temporary path beside `path` and renames it to `path` at the end.

    The suffix stays, since Keras looks at it. After an error the temporary file is
    removed and `path` is as it was; after a power cut `path` is the old or the new.
    """
    path = pathlib.Path(path)
    temporary = path.with_name(f".{path.stem}-{os.getpid()}{path.suffix}")
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path):
    """Waits until a file's content, or a folder's list of names, is on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        # Some network file systems cannot do it for a folder.
        if error.errno != errno.EINVAL or not os.path.isdir(path):
            raise
    finally:
        os.close(number)


def sync_tree(folder):
    """`sync` of all files and folders in `folder`, itself too."""
    for parent, _, files in os.walk(folder):
        for name in files:
            sync(os.path.join(parent, name))
        sync(parent)


def check_writable(folder):
    """Makes `folder` where it is missing, and a file in it that goes again.

    Raises:
        StorageError: no permission, a read-only file system, or no space.
    """
    folder = pathlib.Path(folder)
    probe = folder / f".probe-{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with told_when_full(folder):
            probe.write_bytes(b"x" * 4096)
    except OSError as error:
        if isinstance(error, FileExistsError | NotADirectoryError):
            raise
        raise StorageError(
            f"{folder}: no write permission ({error.strerror})"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


@contextlib.contextmanager
def told_when_full(path):
    """Turns what a full disk raises, in Python or TensorFlow, into a `StorageError`.

    Args:
        path: What is written, a file or a folder; named unless the error names its
            own file.
    """
    try:
        yield
    except StorageError:  # told where the path was known better
        raise
    except Exception as error:
        if not is_full(error):
            raise
        path = getattr(error, "filename", None) or path
        raise StorageError(
            f"{path}: no space left: {_reason(error)}; {_free(path)}"
        ) from error


def is_full(error):
    """Whether an error says that a disk is full."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    # Told by its text, since this module does without TensorFlow; Keras's reader of
    # HDF5 and zip files loses the number, too.
    return any(text in str(error) for text in _FULL_TEXTS)


def _reason(error):
    return next((text for text in _FULL_TEXTS if text in str(error)), str(error))


def _free(path):
    """What is left on the disk of the nearest folder that exists."""
    path = pathlib.Path(path).absolute()
    while not path.exists():
        path = path.parent
    return f"{shutil.disk_usage(path).free:,} bytes free"
