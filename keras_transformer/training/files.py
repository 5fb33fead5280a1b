"""Files that appear whole or not at all."""

import contextlib
import os
import pathlib


@contextlib.contextmanager
def replace_file(path):
    """Yields a temporary path beside `path` and renames it to `path` at the end.

    The suffix stays, since Keras looks at it. After an error the temporary file is
    removed and `path` is as it was.
    """
    path = pathlib.Path(path)
    temporary = path.with_name(f".{path.stem}-{os.getpid()}{path.suffix}")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
