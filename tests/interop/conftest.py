"""Folders of Marian and Hugging Face that tests share."""

import pytest
from toolkit_models import (
    extract_golden,
    random_arrays,
    write_huggingface,
    write_marian,
)


@pytest.fixture(scope="session")
def golden(data_dir, tmp_path_factory):
    """The folder of models that Marian wrote, with its scores and translations."""
    return extract_golden(data_dir, tmp_path_factory.mktemp("golden"))


@pytest.fixture
def marian(tmp_path):
    """A folder of the arrays `random_arrays()` in Marian's format."""
    return write_marian(tmp_path / "marian", random_arrays())


@pytest.fixture
def huggingface(tmp_path):
    """A folder of the arrays `random_arrays()` in Hugging Face's format."""
    return write_huggingface(tmp_path / "huggingface", random_arrays())
