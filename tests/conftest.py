import gc
import os
import pathlib

import pytest
from fault_table import pytest_addoption  # noqa: F401, a hook
from fault_table import pytest_configure  # noqa: F401, a hook

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

SHARED = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"


# Seconds for a slow test.
SLOW_TIMEOUT = 2400


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT))


@pytest.fixture(scope="session")
def data_dir():
    """Folder of the real corpora, which some tests need."""
    folder = pathlib.Path(os.environ.get("KERAS_TRANSFORMER_DATA", SHARED))
    if not folder.is_dir():
        pytest.skip(f"no corpora: set KERAS_TRANSFORMER_DATA (looked in {folder})")
    return folder


@pytest.fixture(scope="module", autouse=True)
def freeze_garbage_collector():
    """Freezes objects, since TensorFlow keeps the graph of every custom gradient."""
    yield
    gc.collect()
    gc.freeze()


# Tracing allocates many objects, which the default of 700 searches again and again.
gc.set_threshold(50_000, 20, 20)


@pytest.fixture
def batches_at_once(monkeypatch):
    """List with the number of parallel batches of each call."""
    from keras_transformer.decoding import compiled

    found, real = [], compiled.parallel_map

    def parallel_map(function, items, num_threads):
        found.append(num_threads)
        return real(function, items, num_threads)

    for module in ("compiled", "translator"):
        name = f"keras_transformer.decoding.{module}.parallel_map"
        monkeypatch.setattr(name, parallel_map)
    return found


@pytest.fixture(scope="session")
def tiny_model():
    """A `Transformer` with random weights and its tokenizer."""
    import tiny_export

    return tiny_export.tiny_model()


@pytest.fixture(scope="session")
def tiny_export(tiny_model, tmp_path_factory):
    """Path of version 1 of the tiny model's export, in a folder named `tiny`."""
    import tiny_export

    folder = tmp_path_factory.mktemp("exports") / "tiny"
    return tiny_export.tiny_export(*tiny_model, folder)


@pytest.fixture(scope="session")
def core_export(tiny_model, tmp_path_factory):
    """Same as `tiny_export`, but with a tokenizer of core TensorFlow operations."""
    import tiny_export

    from keras_transformer.pipelines import CoreOpsBytePairTokenizer

    model, tokenizer = tiny_model
    folder = tmp_path_factory.mktemp("exports") / "core"
    return tiny_export.tiny_export(model, CoreOpsBytePairTokenizer(tokenizer), folder)
