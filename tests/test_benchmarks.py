"""Scripts of the folder `benchmarks`: their options, and the files that they write."""

import subprocess
import sys

import pytest
from benchmark_scripts import FOLDER
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


@pytest.mark.parametrize(
    "name", ["attention_scale", "curve", "readme", "tables", "training_memory"]
)
def test_help_is_one_line_and_the_options(name):
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--help"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    usage, description, _ = found.stdout.split("\n\n", 2)
    assert usage.startswith(f"usage: {name}.py [-h]")
    text = (FOLDER / f"{name}.py").read_text("utf-8")
    assert " ".join(description.split()) == text.partition("\n")[0].strip('"')
