"""A fixture for tests of recipes."""

import pytest
from recipe_errors import MINIMAL


@pytest.fixture
def recipe_path(tmp_path):
    """Path of a recipe with two files and no other settings."""
    path = tmp_path / "mine.yaml"
    path.write_text(MINIMAL, encoding="utf-8")
    return path
