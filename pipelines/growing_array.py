"""An array file that is written from beginning to end without being held."""

import os

import numpy as np


class GrowingArray:
    """A one-dimensional `.npy` file, as long as what is appended to it.

    Args:
        path: of the file; what it held is replaced.
        dtype: of its elements.
    """

    def __init__(self, path: str | os.PathLike, dtype: np.typing.DTypeLike):
        self._dtype = np.dtype(dtype)
        self._length = 0
        self._file = open(path, "wb")  # noqa: SIM115
        self._write_header()

    def append(self, elements: np.ndarray) -> None:
        """Write elements, whatever their type, as the file's."""
        self._file.write(elements.astype(self._dtype, copy=False).tobytes())
        self._length += len(elements)

    def close(self) -> None:
        """Tell the file how long it is."""
        self._file.seek(0)
        self._write_header()
        self._file.close()

    def _write_header(self):
        # NumPy leaves room in it for any length.
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self._length,),
        }
        np.lib.format.write_array_header_1_0(self._file, header)
