import os
import pathlib

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

SHARED = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def data_dir():
    """Folder of the real corpora that some tests need."""
    folder = pathlib.Path(os.environ.get("KERAS_TRANSFORMER_DATA", SHARED))
    if not folder.is_dir():
        pytest.skip(f"no corpora: set KERAS_TRANSFORMER_DATA (looked in {folder})")
    return folder
