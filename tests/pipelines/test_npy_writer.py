"""`NpyWriter`, which appends to a `.npy` file, against `np.save`."""

import numpy as np
import pytest

from keras_transformer.pipelines.npy_writer import NpyWriter


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
@pytest.mark.parametrize("lengths", [[], [0], [3], [5, 0, 1, 12_345, 2]])
def test_npy_writer_writes_the_same_file_as_numpy(tmp_path, dtype, lengths):
    chunks = [np.arange(length, dtype=np.int64) * 7 % 1000 for length in lengths]
    array = NpyWriter(tmp_path / "a.npy", dtype)
    for chunk in chunks:
        array.append(chunk)
    array.close()
    expected = np.concatenate([np.zeros(0, dtype), *chunks]).astype(dtype)
    np.save(tmp_path / "b.npy", expected)
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), expected)


class ManyElements:
    """Stand-in for an array of 10**18 elements, which no disk could store."""

    def astype(self, dtype, copy):
        return self

    def tobytes(self):
        return b"data"

    def __len__(self):
        return 10**18


def test_npy_header_has_space_for_any_length(tmp_path):
    """It is written first, and again at the end, when the length is known."""
    array = NpyWriter(tmp_path / "a.npy", np.int64)
    array.append(ManyElements())
    array.close()
    with open(tmp_path / "a.npy", "rb") as file:
        assert np.lib.format.read_magic(file) == (1, 0)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        assert (shape, dtype) == ((10**18,), np.int64)
        assert file.read() == b"data"
