"""Imports random models that the library `transformers` wrote and compares logits."""

import pytest
from benchmark_scripts import load_script

pytestmark = pytest.mark.slow
agreement = load_script("huggingface_agreement")


@pytest.mark.parametrize("options", agreement.RANDOM_MODELS, ids=str)
@pytest.mark.backends
def test_imported_random_model_matches_transformers(tmp_path, options):
    pytest.importorskip("transformers", reason="computes the expected logits")
    encoder, decoder, *others = options
    model = agreement.write_random(tmp_path / "m", (encoder, decoder), *others)
    found = agreement.compare_random(tmp_path / "m", model)
    # The largest difference between logits, and the number of different translations.
    assert found["largest"] < 1e-4
    assert found["different"] == 0
