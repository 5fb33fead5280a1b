"""A run folder whose checkpoints were lost, for example with another disk."""

import pytest

from keras_transformer.errors import CheckpointError
from keras_transformer.experiments.folder import claim
from keras_transformer.recipes import load_recipe


def test_claim_keeps_the_vocabulary_of_lost_checkpoints(tmp_path):
    """Checkpoints that the user restores need the vocabulary."""
    claim(tmp_path, load_recipe("phrases"))
    before = (tmp_path / "config.yaml").read_bytes()
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "saved.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"none is left\. Restore them"):
        claim(
            tmp_path, load_recipe("phrases", ["model.d_model=32"]), allow_changes=True
        )
    assert (tmp_path / "tokenizer").is_dir()
    assert (tmp_path / "config.yaml").read_bytes() == before
