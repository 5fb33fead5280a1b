"""Scripts of the folder `benchmarks`: their options, and the files that they write."""

import pytest
from benchmark_scripts import load_script


def test_a_failed_write_keeps_the_previous_rows(tmp_path):
    formatting = load_script("formatting")
    path = tmp_path / "a.csv"
    formatting.write_rows(path, [["size", "cost"], [1, 2.5]])

    def rows():
        yield ["size", "cost"]
        raise RuntimeError

    with pytest.raises(RuntimeError):
        formatting.write_rows(path, rows())
    assert path.read_text("utf-8") == "size,cost\n1,2.5\n"
    assert list(tmp_path.iterdir()) == [path]
