"""Fixtures that several test folders share, and the order in which files run."""

import contextlib
import fcntl
import gc
import importlib.util
import json
import os
import pathlib
import shutil
import signal

import process_memory
import pytest
from fault_table import (
    pytest_addoption,  # noqa: F401, a hook
    pytest_configure,  # noqa: F401, a hook
)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# A background job of a script starts with Ctrl-C ignored. Tests that send it, and the
# processes that they start, need it.
signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"

# Packages of the extra `backends`.
BACKENDS = ("jax", "scipy", "torch")
# Timeout of a slow test in seconds.
SLOW_TIMEOUT = 2400
# Files that run on one worker of pytest-xdist because they open the same export.
EXPORTED = (
    "export/test_saved_model.py",
    "export/test_signatures.py",
    "export/test_c_api.py",
    "export/test_exported_translator.py",
    "cli/test_exports.py",
    "decoding/test_blank_texts.py",
    "serving/test_served_model.py",
    "test_any_text.py",
    "beam/test_inference.py",
    "docs/test_reference.py",
)
# Files that run on one worker because they start processes with `prepared`, whose
# server takes seconds to start, or import PyTorch or CTranslate2, which are large.
FORKED = (
    "interop/test_to_ctranslate2.py",
    "training/test_consistency.py",
    "training/test_fused_adam.py",
    "test_other_libraries.py",
    "layers/test_multi_head_attention.py",
    "training/test_trainer.py",
    "cli/test_run.py",
    "training/test_replicas.py",
    "training/test_multi_worker.py",
    "training/test_threads.py",
    "cli/test_command.py",
    "cli/test_translate_resume.py",
    "serving/test_stopping.py",
    "runs/test_repeat_processes.py",
    "runs/test_data_diversification.py",
    "pipelines/test_datasets.py",
    "pipelines/tokenizers/test_hostile_tokenizers.py",
)
# The longest files run first, so that all workers end at about the same time.
LONGEST = (
    *EXPORTED,
    *FORKED,
    "backends/test_model_on_backends.py",
    "training/test_interruptions.py",
    "pipelines/tokenizers/test_contract.py",
    "decoding/test_incremental.py",
    "training/test_faults.py",
    "training/test_training_model.py",
    "cli/test_translate_options.py",
    "cli/test_parse.py",
    "decoding/test_translator.py",
    "frozen/test_frozen.py",
    "test_transformer.py",
    "docs/test_pages.py",
)


def _path_of(nodeid):
    """Returns the path of a test's file, relative to the folder `tests`."""
    return nodeid.partition("::")[0].rpartition("tests/")[2]


def pytest_collection_modifyitems(items):
    order = {file: index for index, file in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(_path_of(item.nodeid), len(order)))
    missing = [name for name in BACKENDS if importlib.util.find_spec(name) is None]
    for item in items:
        if missing and item.get_closest_marker("backends"):
            reason = f"the extra backends is not installed ({', '.join(missing)})"
            item.add_marker(pytest.mark.skip(reason=reason))
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Runs the tests of one file, and of one group of files, in the same process."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = _path_of(nodeid)
            for group in (EXPORTED, FORKED):
                if file in group:
                    return group[0]
            return file

    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.fixture(scope="session")
def data_dir():
    """Folder of the real corpora. If it is missing, tests that need it are skipped."""
    folder = pathlib.Path(os.environ.get("KERAS_TRANSFORMER_DATA", SHARED))
    if not folder.is_dir():
        pytest.skip(f"no corpora: set KERAS_TRANSFORMER_DATA (looked in {folder})")
    return folder


@pytest.fixture(scope="module", autouse=True)
def free_memory(request):
    """Frees the graphs of a test file after its last test."""
    yield
    process_memory.free_if_grown(request.module)


process_memory.share_heaps()
# Tracing allocates many objects. With the default threshold of 700, the garbage
# collector would search them again and again.
gc.set_threshold(50_000, 20, 20)


@pytest.fixture
def parallel_counts(monkeypatch):
    """List that receives the number of threads of each call of `parallel_map`."""
    from keras_transformer.decoding import compiled

    counts, real = [], compiled.parallel_map

    def parallel_map(function, items, num_threads):
        counts.append(num_threads)
        return real(function, items, num_threads)

    for module in ("decoding.translator", "export.exported_translator"):
        name = f"keras_transformer.{module}.parallel_map"
        monkeypatch.setattr(name, parallel_map)
    return counts


@pytest.fixture(scope="session")
def tiny_model():
    """Pair of a `Transformer` with random weights and its tokenizer."""
    import tiny_export

    return tiny_export.tiny_model()


@pytest.fixture(scope="session")
def tiny_model_file(tiny_model, tmp_path_factory):
    """Path of the tiny model's `.keras` file, next to its tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    model, tokenizer = tiny_model
    model.save(folder / "model.keras")
    tokenizer.save(folder)
    return folder / "model.keras"


@pytest.fixture(scope="session")
def write_once(request, tmp_path_factory):
    """Function that shares a written folder between all workers of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):  # set by pytest-xdist
        base = base.parent

    def write_once(name, write):
        """Returns the folder `name`. Only the first call runs `write(folder)`."""
        folder = base / "written" / name
        folder.parent.mkdir(exist_ok=True)
        with open(folder.with_name(f"{name}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                part = folder.with_name(f"{name}.part")
                shutil.rmtree(part, ignore_errors=True)
                write(part)
                part.rename(folder)
        return folder

    return write_once


@pytest.fixture(scope="session")
def tiny_export(tiny_model, write_once):
    """Path of version 1 of the tiny model's export: the folder `tiny/1`."""
    import tiny_export

    def write(folder):
        tiny_export.tiny_export(*tiny_model, folder)

    return write_once("tiny", write) / "1"


@pytest.fixture(scope="session")
def small_batch_export(tiny_model, write_once):
    """Export with a maximum batch size of seven rows and only two signatures."""
    import tiny_export

    def write(folder):
        with tiny_export.only_signatures("serving_default", "translate_n_best"):
            tiny_export.tiny_export(*tiny_model, folder, max_batch_size=7)

    return write_once("small_batch", write) / "1"


@pytest.fixture
def export_only():
    """Function that limits the test's later exports to signatures, given by name."""
    import tiny_export

    with contextlib.ExitStack() as stack:
        yield lambda *names: stack.enter_context(tiny_export.only_signatures(*names))


@pytest.fixture(scope="session")
def load_once():
    """Function like `tf.saved_model.load` that loads exports of equal content once."""
    import tensorflow as tf

    real = tf.saved_model.load

    def load_once(path):
        files = [*pathlib.Path(path).glob("variables/*")]
        files.append(pathlib.Path(path, "saved_model.pb"))
        key = tuple(sorted((file.name, file.read_bytes()) for file in files))
        if key not in load_once.loaded:
            load_once.loaded[key] = real(path)
        return load_once.loaded[key]

    load_once.loaded = {}
    return load_once


@pytest.fixture(scope="module")
def exports_load_once(load_once, tiny_signatures):
    """Lets all tests of a module share each loaded SavedModel, as `load_once` does."""
    import tensorflow as tf

    before = {**load_once.loaded}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf.saved_model, "load", load_once)
        yield
    load_once.loaded = before


@pytest.fixture(scope="module")
def models_stay_open():
    """Caches opened models within a module, so that each compiles once."""
    from keras_transformer import opening as models

    opened = {}
    real = models.open_model

    def open_model(
        path,
        ensemble=(),
        adapters=(),
        allow_unsafe=False,
        parallel_parts=1,
        warn=None,
    ):
        key = (str(path), *map(str, ensemble), *adapters, allow_unsafe, parallel_parts)
        if key not in opened:
            options = {"ensemble": ensemble, "parallel_parts": parallel_parts}
            options["adapters"] = adapters
            opened[key] = real(path, allow_unsafe=allow_unsafe, **options)
        opened[key].warn = warn or (lambda *_: None)
        return opened[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "open_model", open_model)
        yield


@pytest.fixture(scope="session")
def tiny_signatures(tiny_export, load_once):
    """Signatures of the tiny model's export, by name."""
    return load_once(str(tiny_export)).signatures


@pytest.fixture(scope="session")
def tiny_translator(tiny_model):
    """A `Translator` with the tiny model and the settings of its export."""
    import tiny_export

    import keras_transformer as kt

    return kt.Translator(*tiny_model, **tiny_export.SEARCH, warn=lambda *_: None)


@pytest.fixture(scope="session")
def core_export(tiny_model, write_once):
    """Same as `tiny_export`, but with a tokenizer of core TensorFlow operations."""
    import tiny_export

    from keras_transformer.pipelines import CoreOpsBytePairTokenizer

    model, tokenizer = tiny_model

    def write(folder):
        core = CoreOpsBytePairTokenizer(tokenizer)
        tiny_export.tiny_export(model, core, folder)

    return write_once("core", write) / "1"


@pytest.fixture(scope="session")
def phrases_run(write_once):
    """Folder of a run of `phrases_run.small_recipe()`, and the summary of `train`."""
    import phrases_run

    from keras_transformer.runs.train import train

    def write(folder):
        run = folder / "run"
        summary = train(phrases_run.small_recipe(), run, progress=False)
        (folder / "summary.json").write_text(json.dumps(summary, default=str))

    folder = write_once("phrases", write)
    return folder / "run", json.loads((folder / "summary.json").read_text())
