"""Constructor arguments of `Transformer` for the paper's models and two smaller ones.

Rows of Table 3 are named by group letter and position in the group, such as "A1".
Group E has a single row, "E".
"""

from keras_transformer.arguments import DEFAULTS, with_head_dims

_SIZES = ("num_layers", "d_model", "d_ff", "num_heads", "dropout")


def _base(**changes):
    """Returns the arguments of base with changes."""
    return with_head_dims({**{name: DEFAULTS[name] for name in _SIZES}, **changes})


WIDTHS = ("d_model", "d_ff", "key_dim", "value_dim")
SIZES = {
    # Transformer-Tiny of Wu et al. (2021), for small data.
    "tiny": _base(num_layers=4, d_model=128, d_ff=256, num_heads=4, dropout=0.3),
    "small": _base(num_layers=4, d_model=256, d_ff=1024, num_heads=4, dropout=0.3),
    "base": _base(),
    "big": _base(d_model=1024, d_ff=4096, num_heads=16, dropout=0.3),
    # Section 6.3 gives 4 layers and d_model 1024. The other widths are those of big.
    "parsing": _base(num_layers=4, d_model=1024, d_ff=4096, num_heads=16),
    "A1": _base(num_heads=1),
    "A2": _base(num_heads=4),
    "A3": _base(num_heads=16),
    "A4": _base(num_heads=32),
    "B1": _base(key_dim=16),
    "B2": _base(key_dim=32),
    "C1": _base(num_layers=2),
    "C2": _base(num_layers=4),
    "C3": _base(num_layers=8),
    "C4": _base(d_model=256),
    "C5": _base(d_model=1024),
    "C6": _base(d_ff=1024),
    "C7": _base(d_ff=4096),
    "D1": _base(dropout=0.0),
    "D2": _base(dropout=0.2),
    # D3 and D4 change the label smoothing only: see TRAINING_CHANGES.
    "D3": _base(),
    "D4": _base(),
    "E": _base(positions="learned", max_length=512),
}

# Rows of Table 3 that change keys in the recipe's section `training`.
TRAINING_CHANGES = {
    "D3": {"label_smoothing": 0.0},
    "D4": {"label_smoothing": 0.2},
}


def change_size(name, changes):
    """Returns the arguments of a size, updated with `changes`.

    If `d_model` or `num_heads` changes, the `key_dim` and `value_dim` of the size no
    longer match and are omitted, unless `changes` contains them.
    """
    given = SIZES[name]
    arguments = {**given, **changes}
    if any(arguments[each] != given[each] for each in ("d_model", "num_heads")):
        for head_size in {"key_dim", "value_dim"} - set(changes):
            del arguments[head_size]
    return arguments
