"""Constructor arguments of `Transformer` for the paper's models and two smaller ones.

Rows of Table 3 are named by their letter and their number within that letter.
"""

_BASE = {"num_layers": 6, "d_model": 512, "d_ff": 2048, "num_heads": 8, "dropout": 0.1}


def _base(**changes):
    """Returns the base model with changes; by default, the heads share the width."""
    preset = {**_BASE, **changes}
    head_dim = preset["d_model"] // preset["num_heads"]
    return {"key_dim": head_dim, "value_dim": head_dim, **preset}


PRESETS = {
    # For small data and small machines: Transformer-Tiny of Wu et al. (2021).
    "tiny": _base(num_layers=4, d_model=128, d_ff=256, num_heads=4, dropout=0.3),
    "small": _base(num_layers=4, d_model=256, d_ff=1024, num_heads=4, dropout=0.3),
    "base": _base(),
    "big": _base(d_model=1024, d_ff=4096, num_heads=16, dropout=0.3),
    # Section 6.3: 4 layers of the widths of big, with the dropout of base.
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


def change_preset(name, changes):
    """Returns the arguments of a preset, updated with `changes`.

    If `d_model` or `num_heads` changes, the preset's `key_dim` and `value_dim` do not
    fit: they are omitted unless `changes` contains them.
    """
    preset = PRESETS[name]
    arguments = {**preset, **changes}
    if any(arguments[size] != preset[size] for size in ("d_model", "num_heads")):
        for head_size in {"key_dim", "value_dim"} - set(changes):
            del arguments[head_size]
    return arguments
