"""Streams a one-dimensional array to a `.npy` file."""

import os

import numpy as np


class NpyWriter:
    """Writes a one-dimensional `.npy` file chunk by chunk.

    Args:
        path: Path of the file. An existing file is replaced.
        dtype: Element type.
    """

    def __init__(self, path: str | os.PathLike, dtype: np.typing.DTypeLike):
        self._dtype = np.dtype(dtype)
        self._length = 0
        self._file = open(path, "wb")  # noqa: SIM115
        self._write_header()

    def append(self, elements: np.ndarray) -> None:
        """Appends elements, cast to the file's dtype."""
        self._file.write(elements.astype(self._dtype, copy=False).tobytes())
        self._length += len(elements)

    def close(self) -> None:
        """Writes the final length into the header and closes the file."""
        with self._file:
            self._file.seek(0)
            self._write_header()

    def _write_header(self):
        # NumPy pads the header to the same size for any length, so that `close` can
        # overwrite it.
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self._length,),
        }
        np.lib.format.write_array_header_1_0(self._file, header)
