"""The argument `score_mode` under its name in version 0.1, `score`."""

import warnings

import pytest

from keras_transformer import Transformer
from keras_transformer.layers import DecoderLayer
from keras_transformer.layers import Encoder
from keras_transformer.layers import MultiHeadAttention
from keras_transformer.layers import RestrictedSelfAttention

CASES = {
    MultiHeadAttention: {"num_heads": 2, "key_dim": 3},
    RestrictedSelfAttention: {"num_heads": 2, "key_dim": 3, "window": 1},
    DecoderLayer: {"num_heads": 2, "key_dim": 3, "d_ff": 4},
    Encoder: {"num_layers": 1, "num_heads": 2, "key_dim": 3, "d_ff": 4},
    Transformer: {"vocabulary_size": 9, "num_layers": 1, "d_model": 4, "num_heads": 2},
}


@pytest.mark.parametrize("layer_class", CASES)
def test_score_warns_and_sets_the_score_mode(layer_class):
    match = "`score=` .* Use `score_mode=`"
    with pytest.warns(DeprecationWarning, match=match) as warned:
        layer = layer_class(**CASES[layer_class], score="dot")
    assert layer.get_config()["score_mode"] == "dot"
    # Python shows the warning only if it points to the code of the user.
    assert [each.filename for each in warned] == [__file__]


@pytest.mark.parametrize("layer_class", CASES)
def test_stored_config_with_score_loads_without_a_warning(layer_class):
    config = layer_class(**CASES[layer_class], score_mode="additive").get_config()
    config["score"] = config.pop("score_mode")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = layer_class.from_config(config)
    assert layer.score_mode == "additive"
