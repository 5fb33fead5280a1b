"""Fixtures for tests that kill commands and run them again.

Each fixture that ends in `_run` trains once. Tests compare interrupted runs with it.
"""

import pytest
from forks import Forks

# A short run with all features whose state a checkpoint must restore.
SETTINGS = [
    "data.size=400",
    "data.held_out=12",
    "tokenizer.vocabulary_size=370",
    "model={preset: tiny, num_layers: 1, d_model: 16, d_ff: 24, num_heads: 2}",
    "model.dropout=0.2",
    "training.steps=12",
    "training.batch_tokens=220",
    "training.warmup_steps=4",
    "training.gradient_accumulation_steps=2",
    "training.parallel_parts=2",
    "training.mixed_precision=float16",
    "training.checkpoint_steps=3",
    "training.keep_checkpoints=3",
    "training.average_checkpoints=2",
    "training.validation_steps=4",
    "training.validation_sentences=3",
    "training.early_stopping={metric: perplexity, patience: 50}",
    "decoding.extra_length=3",
]


@pytest.fixture(scope="session")
def forks(tmp_path_factory):
    return Forks(tmp_path_factory.mktemp("forks"))


def train_arguments(*settings):
    """Returns the arguments of `train`, except `--output`."""
    settings = (part for one in (*SETTINGS, *settings) for part in ("--set", one))
    return ["train", "phrases", *settings, "--deterministic"]


@pytest.fixture(scope="session")
def quick_arguments():
    """Arguments of `train` without decoding in validation."""
    return train_arguments("training.validation_bleu=false")


@pytest.fixture(scope="session")
def light_arguments():
    """Arguments of `train` with a simpler step, which is traced in a few seconds."""
    return train_arguments(
        "training.validation_bleu=false",
        "training.gradient_accumulation_steps=1",
        "training.parallel_parts=1",
        # Makes a checkpoint larger than best.keras, as test_full_disk.py requires.
        "model.d_ff=400",
    )


@pytest.fixture(scope="session")
def all_features_arguments():
    """Arguments of `train` with all features of `SETTINGS`, including BLEU."""
    return train_arguments()


@pytest.fixture(scope="session")
def quick_run(forks, quick_arguments, tmp_path_factory):
    """Folder of an uninterrupted run with `quick_arguments`."""
    return run_to_end(forks, quick_arguments, tmp_path_factory.mktemp("quick") / "run")


@pytest.fixture(scope="session")
def light_run(forks, light_arguments, tmp_path_factory):
    """Folder of an uninterrupted run with `light_arguments`."""
    return run_to_end(forks, light_arguments, tmp_path_factory.mktemp("light") / "run")


@pytest.fixture(scope="session")
def all_features_run(forks, all_features_arguments, tmp_path_factory):
    """Folder of an uninterrupted run of `all_features_arguments`."""
    folder = tmp_path_factory.mktemp("all_features") / "run"
    return run_to_end(forks, all_features_arguments, folder)


def run_to_end(forks, arguments, folder):
    """Trains to the end and returns the folder."""
    code, log = forks.run(*arguments, "--output", folder)
    assert code == 0, log
    return folder
