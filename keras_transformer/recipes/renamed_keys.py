"""Recipe keys that were renamed. The old names work for one release."""

# Keys of version 0.1 and their new names.
RENAMED_KEYS = {
    "model.score": "model.score_mode",
    "training.keep": "training.keep_checkpoints",
    "training.average": "training.average_checkpoints",
    "training.on_nan": "training.on_nonfinite",
    "training.max_skipped": "training.max_consecutive_skips",
    "training.clip_norm": "training.global_clipnorm",
}


def rename_keys(values: dict) -> list[str]:
    """Replaces the old keys of a recipe's mapping in place.

    Args:
        values: Sections by name.

    Returns:
        The old dotted keys that were replaced.

    Raises:
        ValueError: If a key is given under both names.
    """
    renamed = []
    for old, new in RENAMED_KEYS.items():
        (section, old_name), new_name = old.split("."), new.partition(".")[2]
        keys = values.get(section)
        if not isinstance(keys, dict) or old_name not in keys:
            continue
        if new_name in keys:
            raise ValueError(f"{old} is the old name of {new}. Remove {old}")
        values[section] = {
            new_name if name == old_name else name: value
            for name, value in keys.items()
        }
        renamed.append(old)
    return renamed
