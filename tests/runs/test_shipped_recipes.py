"""Every shipped recipe yields a batch in an installation without extras."""

import json
import pathlib
import subprocess
import sys

import pytest

from keras_transformer.recipes import shipped_recipes

SCRIPT = pathlib.Path(__file__).with_name("first_batches.py")


@pytest.fixture(scope="module")
def first_batches(tmp_path_factory):
    """Dict from recipe to the shape of its first batch, or to the text of an error."""
    folder = tmp_path_factory.mktemp("data")
    done = subprocess.run(
        [sys.executable, SCRIPT, folder], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    # TFDS reports its progress on standard output, too.
    lines = [line for line in done.stdout.splitlines() if line.startswith('["')]
    return dict(map(json.loads, lines))


@pytest.mark.parametrize("name", shipped_recipes())
def test_shipped_recipe_yields_a_batch(first_batches, name):
    batch = first_batches[name]
    assert isinstance(batch, list), batch
    rows, length = batch
    # The script sets training.batch_tokens to 512.
    assert 0 < rows * length <= 512
