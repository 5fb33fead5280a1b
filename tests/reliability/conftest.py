"""Runs that tests interrupt, and the same runs without an interruption."""

from typing import NamedTuple

import pytest
from forks import Forks

# A short run with all features whose state a checkpoint must restore.
SETTINGS = [
    "data.size=400",
    "data.held_out=12",
    "tokenizer.vocabulary_size=370",
    "model={size: tiny, num_layers: 1, d_model: 16, d_ff: 24, num_heads: 2}",
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
    "training.best_metric=perplexity",
    "training.early_stopping={patience: 50}",
    "decoding.extra_length=3",
]
# Changes for a run without decoding, whose simpler step is traced in a few seconds.
LIGHT = [
    "training.validation_bleu=false",
    "training.gradient_accumulation_steps=1",
    "training.parallel_parts=1",
    # Makes a checkpoint larger than best.keras, as test_full_disk.py requires.
    "model.d_ff=400",
]


class Training(NamedTuple):
    """Arguments of the command `train`, except `--output`, and a run of them."""

    arguments: list
    run: object  # path of the folder


@pytest.fixture(scope="session")
def forks(tmp_path_factory):
    return Forks(tmp_path_factory.mktemp("forks"))


def arguments_of(settings):
    settings = (part for one in settings for part in ("--set", one))
    return ["train", "phrases", *settings, "--deterministic"]


def train(forks, arguments, folder):
    code, log = forks.run(*arguments, "--output", folder)
    assert code == 0, log
    return Training(arguments, folder)


@pytest.fixture(scope="session")
def light_arguments():
    """Arguments of a training without decoding and parts of batches."""
    return arguments_of([*SETTINGS, *LIGHT])


@pytest.fixture(scope="session")
def light(forks, light_arguments, tmp_path_factory):
    return train(forks, light_arguments, tmp_path_factory.mktemp("light") / "run")


@pytest.fixture(scope="session")
def full(forks, tmp_path_factory):
    """`Training` with all features, including BLEU."""
    arguments = arguments_of(SETTINGS)
    return train(forks, arguments, tmp_path_factory.mktemp("full") / "run")
