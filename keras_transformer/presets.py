"""Constructor arguments of `Transformer` for the models of the paper.

The rows of Table 3 are named by a letter and their number within it.
"""

_BASE = {
    "num_layers": 6,
    "d_model": 512,
    "d_ff": 2048,
    "num_heads": 8,
    "key_dim": 64,
    "value_dim": 64,
    "dropout": 0.1,
}


def _base(**changes):
    return {**_BASE, **changes}


def _heads(num_heads):
    dim = _BASE["d_model"] // num_heads
    return _base(num_heads=num_heads, key_dim=dim, value_dim=dim)


PRESETS = {
    # For small data and small machines: Transformer-Tiny of Wu et al. (2021).
    "tiny": {
        "num_layers": 4,
        "d_model": 128,
        "d_ff": 256,
        "num_heads": 4,
        "key_dim": 32,
        "value_dim": 32,
        "dropout": 0.3,
    },
    "small": {
        "num_layers": 4,
        "d_model": 256,
        "d_ff": 1024,
        "num_heads": 4,
        "key_dim": 64,
        "value_dim": 64,
        "dropout": 0.3,
    },
    "base": _base(),
    "big": _base(d_model=1024, d_ff=4096, num_heads=16, dropout=0.3),
    # Section 6.3: 4 layers of width 1024, otherwise the same as big.
    "parsing": _base(num_layers=4, d_model=1024, d_ff=4096, num_heads=16),
    "A1": _heads(1),
    "A2": _heads(4),
    "A3": _heads(16),
    "A4": _heads(32),
    "B1": _base(key_dim=16),
    "B2": _base(key_dim=32),
    "C1": _base(num_layers=2),
    "C2": _base(num_layers=4),
    "C3": _base(num_layers=8),
    "C4": _base(d_model=256, key_dim=32, value_dim=32),
    "C5": _base(d_model=1024, key_dim=128, value_dim=128),
    "C6": _base(d_ff=1024),
    "C7": _base(d_ff=4096),
    "D1": _base(dropout=0.0),
    "D2": _base(dropout=0.2),
    # D3 and D4 change the label smoothing only: see TRAINING_PRESETS.
    "D3": _base(),
    "D4": _base(),
    "E": _base(positions="learned", max_length=512),
}

# Training keys of the recipe that a row of Table 3 changes.
TRAINING_PRESETS = {
    "D3": {"label_smoothing": 0.0},
    "D4": {"label_smoothing": 0.2},
}
