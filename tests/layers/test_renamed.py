"""The argument `score_mode` under its name in version 0.1, `score`."""

import warnings

import pytest

from keras_transformer import Transformer
from keras_transformer.layers import Encoder
from keras_transformer.layers import MultiHeadAttention

CASES = {
    MultiHeadAttention: {"num_heads": 2, "key_dim": 3},
    Encoder: {"num_layers": 1, "num_heads": 2, "key_dim": 3, "d_ff": 4},
    Transformer: {"vocabulary_size": 9, "num_layers": 1, "d_model": 4, "num_heads": 2},
}


@pytest.mark.parametrize("layer_class", CASES)
def test_score_warns_and_sets_the_score_mode(layer_class):
    with pytest.warns(DeprecationWarning, match="`score=` .* Use `score_mode=`"):
        layer = layer_class(**CASES[layer_class], score="dot")
    assert layer.get_config()["score_mode"] == "dot"


@pytest.mark.parametrize("layer_class", CASES)
def test_stored_config_with_score_loads_without_a_warning(layer_class):
    config = layer_class(**CASES[layer_class], score_mode="additive").get_config()
    config["score"] = config.pop("score_mode")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = layer_class.from_config(config)
    assert layer.score_mode == "additive"
