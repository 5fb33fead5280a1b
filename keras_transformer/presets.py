"""Constructor arguments of `Transformer` for the paper's models and two smaller ones.

Rows of Table 3 are named by group letter and position in the group, such as "A1".
Group E has a single row, "E".
"""

import tempfile

from keras_transformer.arguments import DEFAULTS, with_head_dims

_SIZES = ("num_layers", "d_model", "d_ff", "num_heads", "dropout")


def _base(**changes):
    """Returns the base preset with changes."""
    return with_head_dims({**{name: DEFAULTS[name] for name in _SIZES}, **changes})


WIDTHS = ("d_model", "d_ff", "key_dim", "value_dim")
PRESETS = {
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
    # D3 and D4 change the label smoothing only: see TRAINING_PRESETS.
    "D3": _base(),
    "D4": _base(),
    "E": _base(positions="learned", max_length=512),
}

# Rows of Table 3 that change keys in the recipe's section `training`.
TRAINING_PRESETS = {
    "D3": {"label_smoothing": 0.0},
    "D4": {"label_smoothing": 0.2},
}


def change_preset(name, changes):
    """Returns the arguments of a preset, updated with `changes`.

    If `d_model` or `num_heads` changes, the preset's `key_dim` and `value_dim` no
    longer match and are omitted, unless `changes` contains them.
    """
    preset = PRESETS[name]
    arguments = {**preset, **changes}
    if any(arguments[size] != preset[size] for size in ("d_model", "num_heads")):
        for head_size in {"key_dim", "value_dim"} - set(changes):
            del arguments[head_size]
    return arguments


class PresetMixin:
    """Mixin with the preset methods of `Transformer`.

    Its methods import `saving` when they are called, because `saving` imports the
    model.
    """

    @classmethod
    def from_preset(cls, preset, vocabulary_size=None, **changes):
        """Builds a model from a preset, such as `"base"`, or loads a stored one.

        Args:
            preset: A key of `PRESETS`, for random weights. Otherwise a stored preset: a
                folder that `save_to_preset` wrote, the name of a model in this package,
                or `hf://OWNER/NAME` for a preset on the Hugging Face Hub.
            vocabulary_size: Number of ids, only for a key of `PRESETS`.
            **changes: Constructor arguments that differ from the preset. If `preset` is
                a key of `PRESETS` and `d_model` or `num_heads` changes, the default
                `key_dim` and `value_dim` are `d_model // num_heads`.

        Raises:
            ValueError: If `vocabulary_size` is missing for a key of `PRESETS`. If a
                stored preset does not exist or fails the safety checks, or if its
                weights do not match the model with `changes`.
        """
        if preset in PRESETS:
            if vocabulary_size is None:
                raise ValueError(f"`vocabulary_size` must be given for {preset!r}.")
            return cls(vocabulary_size, **change_preset(preset, changes))
        if vocabulary_size is not None:
            raise ValueError(
                f"With `vocabulary_size`, `preset` must be one of {', '.join(PRESETS)}."
                f" Received: {preset!r}."
            )
        from keras_transformer.saving.load import load_preset_model

        return load_preset_model(preset, cls, **changes)

    def save_to_preset(self, folder, tokenizer=None, **options):
        """Writes a preset for `from_preset`, with the file names of KerasHub.

        The files are `config.json`, `metadata.json` and `model.weights.h5`. A tokenizer
        adds `tokenizer.json`, `assets/tokenizer/` and `task.json`, so that `open_model`
        can translate with the preset. KerasHub can read the model only after `import
        keras_transformer`.

        Args:
            folder: Folder to write. An existing preset is replaced, except for its
                `README.md`.
            tokenizer: Tokenizer of source and target. If `None`, only the model is
                written.
            **options: `search`, a `BeamSearch`; `max_source_length`, the maximum number
                of subwords per segment; and `dtype="float16"` for weights in half
                precision.

        Returns:
            Path of the folder.

        Raises:
            ValueError: If the folder contains anything but a preset, `dtype` is
                unknown, the tokenizer does not match the model, or a weight exceeds the
                range of `dtype`.
        """
        from keras_transformer.saving.preset import save_preset

        return save_preset(self, folder, tokenizer, **options)

    def push_to_hub(self, name, tokenizer=None, private=False, **options):
        """Uploads a preset to the Hugging Face Hub. Requires the extra `hub`.

        Replaces an earlier preset in the repository, but keeps the `README.md`.

        Args:
            name: `OWNER/NAME` of the repository, which is created if necessary.
            tokenizer: Tokenizer of source and target. If `None`, only the model is
                uploaded.
            private: Whether a new repository is private.
            **options: `search`, `max_source_length` and `dtype` of `save_to_preset`.

        Returns:
            URL of the commit.

        Raises:
            ValueError: If huggingface_hub is not installed, or the upload fails, for
                example because you are not logged in. Also if `save_to_preset` rejects
                the arguments.
        """
        from keras_transformer.saving.hub import upload

        with tempfile.TemporaryDirectory() as folder:
            folder = self.save_to_preset(f"{folder}/preset", tokenizer, **options)
            return upload(folder, name, private)
