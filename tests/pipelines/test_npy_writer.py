"""`NpyWriter`, which appends to a `.npy` file, against `np.save`."""

import io

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


def test_npy_header_has_one_size_for_any_length():
    """`NpyWriter` overwrites the header at the end, when the length is known."""
    sizes = set()
    for length in (0, 9, 10**9, 10**18):
        header = {"descr": "<i8", "fortran_order": False, "shape": (length,)}
        file = io.BytesIO()
        np.lib.format.write_array_header_1_0(file, header)
        sizes.add(file.tell())
    assert len(sizes) == 1
