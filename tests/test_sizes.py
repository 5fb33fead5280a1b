"""Tests sizes against a second copy of Table 3 and a formula for parameter counts."""

import pytest

import keras_transformer as kt
from keras_transformer.arguments import count_parameters, with_head_dims
from keras_transformer.sizes import SIZES, TRAINING_CHANGES, change_size

# Layers, d_model, d_ff, heads, d_k, d_v, dropout, and the millions of parameters, which
# the paper prints for some rows.
TABLE_3 = {
    "base": (6, 512, 2048, 8, 64, 64, 0.1, 65),
    "A1": (6, 512, 2048, 1, 512, 512, 0.1, None),
    "A2": (6, 512, 2048, 4, 128, 128, 0.1, None),
    "A3": (6, 512, 2048, 16, 32, 32, 0.1, None),
    "A4": (6, 512, 2048, 32, 16, 16, 0.1, None),
    "B1": (6, 512, 2048, 8, 16, 64, 0.1, 58),
    "B2": (6, 512, 2048, 8, 32, 64, 0.1, 60),
    "C1": (2, 512, 2048, 8, 64, 64, 0.1, 36),
    "C2": (4, 512, 2048, 8, 64, 64, 0.1, 50),
    "C3": (8, 512, 2048, 8, 64, 64, 0.1, 80),
    "C4": (6, 256, 2048, 8, 32, 32, 0.1, 28),
    "C5": (6, 1024, 2048, 8, 128, 128, 0.1, 168),
    "C6": (6, 512, 1024, 8, 64, 64, 0.1, 53),
    "C7": (6, 512, 4096, 8, 64, 64, 0.1, 90),
    "D1": (6, 512, 2048, 8, 64, 64, 0.0, None),
    "D2": (6, 512, 2048, 8, 64, 64, 0.2, None),
    "D3": (6, 512, 2048, 8, 64, 64, 0.1, None),
    "D4": (6, 512, 2048, 8, 64, 64, 0.1, None),
    "E": (6, 512, 2048, 8, 64, 64, 0.1, None),
    "big": (6, 1024, 4096, 16, 64, 64, 0.3, 213),
}
# Sizes that are not in the table: for small data, and the parser of section 6.3.
OTHERS = {
    "tiny": (4, 128, 256, 4, 32, 32, 0.3, None),
    "small": (4, 256, 1024, 4, 64, 64, 0.3, None),
    "parsing": (4, 1024, 4096, 16, 64, 64, 0.1, None),
}
ROWS = {**TABLE_3, **OTHERS}
# Vocabulary sizes that give the printed numbers of parameters. The paper reports "about
# 37000".
VOCABULARY_SIZE = 41_100
BIG_VOCABULARY_SIZE = 36_000


def count_by_formula(vocabulary_size, num_layers, d_model, d_ff, heads, d_k, d_v):
    """Computes the number of parameters.

    Embeddings are tied. Only feed-forward networks and norms have biases.
    """
    attention = 2 * d_model * heads * d_k + 2 * d_model * heads * d_v
    feed_forward = d_model * d_ff + d_ff + d_ff * d_model + d_model
    norm = 2 * d_model
    encoder_layer = attention + norm + feed_forward + norm
    decoder_layer = 2 * (attention + norm) + feed_forward + norm
    layers = num_layers * (encoder_layer + decoder_layer)
    return vocabulary_size * d_model + layers


def test_sizes_have_every_row_of_table_3():
    assert set(SIZES) == set(ROWS)
    assert kt.SIZES is SIZES
    assert TRAINING_CHANGES == {
        "D3": {"label_smoothing": 0.0},
        "D4": {"label_smoothing": 0.2},
    }


@pytest.mark.parametrize("name", ROWS)
def test_size_matches_table_3(name):
    names = ("num_layers", "d_model", "d_ff", "num_heads", "key_dim", "value_dim")
    *sizes, dropout, printed = ROWS[name]
    expected = {**dict(zip(names, sizes, strict=True)), "dropout": dropout}
    size = BIG_VOCABULARY_SIZE if name == "big" else VOCABULARY_SIZE
    number = count_by_formula(size, *sizes)
    if name == "E":
        expected.update(positions="learned", max_length=512)
        # A table of positions for the source and one for the target.
        number += 2 * 512 * 512
    assert SIZES[name] == expected
    assert count_parameters(SIZES[name] | {"vocabulary_size": size}) == number
    assert printed is None or round(number / 1e6) == printed


@pytest.mark.parametrize(
    ("name", "vocabulary_size", "millions"),
    [
        ("base", 41_100, 65.14),
        ("base", 37_000, 63.05),
        ("big", 37_000, 214.20),
        # Wu et al. (2021): 2.6 million with a joint vocabulary of 10,000.
        ("tiny", 10_000, 2.60),
    ],
)
def test_size_has_the_known_number_of_parameters(name, vocabulary_size, millions):
    number = count_parameters(SIZES[name] | {"vocabulary_size": vocabulary_size})
    assert number / 1e6 == pytest.approx(millions, abs=0.05 if name == "big" else 0.005)


def test_count_parameters_matches_a_built_size():
    model = kt.Transformer.from_size("tiny", 41)
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    arguments = SIZES["tiny"] | {"vocabulary_size": 41}
    assert count_parameters(arguments) == model.count_params()
    assert SIZES["tiny"].items() <= model.get_config().items()
    changed = kt.Transformer.from_size("tiny", 41, dropout=0.0, pad_id=7)
    assert (changed.dropout, changed.pad_id, changed.d_model) == (0.0, 7, 128)
    with pytest.raises(ValueError, match=r"must be one of tiny, .* Received: 'huge'"):
        kt.Transformer.from_size("huge", 41)


def test_default_sizes_match_the_base_size():
    config = with_head_dims(kt.Transformer(41).get_config())
    assert SIZES["base"].items() <= config.items()


@pytest.mark.parametrize(
    ("changes", "widths"),
    [
        ({"num_heads": 8}, (16, 16)),
        ({"d_model": 64, "num_heads": 2}, (32, 32)),
        ({"d_model": 64, "key_dim": 5}, (5, 16)),
        ({"key_dim": 5}, (5, 32)),
    ],
)
def test_size_widths_follow_changed_sizes(changes, widths):
    """As in the paper, heads have width `d_model / num_heads`, in "tiny" 32."""
    arguments = with_head_dims(change_size("tiny", changes))
    assert (arguments["key_dim"], arguments["value_dim"]) == widths
