"""Loading of trained models: runs, `.keras` files, and presets.

`recipe_keys` needs no TensorFlow, except with `allow_unsafe`. Loading weights needs it.
"""

import pathlib

from keras_transformer.arguments import count_parameters, with_head_dims
from keras_transformer.errors import ModelError
from keras_transformer.recipes import load_recipe
from keras_transformer.recipes.schema import ARCHITECTURE, MODEL_ARGUMENTS
from keras_transformer.saving import keras_file, names
from keras_transformer.saving.preset import load_preset, read_task
from keras_transformer.saving.stored_weights import check_finite

# Variations that add no weights. A run with `train --from` may change them.
_WEIGHTLESS = ("zero_start_id", "timescales", "layer_norm_epsilon")


def recipe_keys(path, allow_unsafe=False):
    """Returns the recipe keys with which a run trains from a model's weights.

    These are `"training.initial_model"`, and the sections `"model"`, `"tokenizer"` and,
    if the model has search settings, `"decoding"`.
    """
    source = _locate_weights(path)
    keys = {"training.initial_model": str(source)}
    recipe = source.recipe()
    if recipe is not None:
        keys["model"] = recipe.model.model_dump()
        keys["tokenizer"] = recipe.tokenizer.model_dump()
    task = read_task(source.path) if source.kind == "preset" else None
    if (search := recipe.decoding if recipe else task and task.search) is not None:
        keys["decoding"] = search.model_dump()
    if source.weights is None:
        return keys
    if allow_unsafe and source.kind != "preset":
        settings = load_model(source, allow_unsafe)[2].get_config()
    else:
        with keras_file.open_checked(source) as stored:
            settings = stored.settings
    if recipe is None:
        kind, is_shared = names.tokenizer_layout(source.tokenizer)
        keys["model"] = {name: settings[name] for name in MODEL_ARGUMENTS}
        keys["tokenizer"] = {"kind": kind}
    else:
        is_shared = recipe.tokenizer.shared
    keys["tokenizer"]["vocabulary_size"] = settings["vocabulary_size"]
    if not is_shared:
        source_size = (settings["variations"] or {}).get("source_vocabulary_size")
        keys["tokenizer"] |= {"shared": False, "source_vocabulary_size": source_size}
    return keys


def _locate_weights(path):
    """Like `locate`, but rejects exports, whose weights cannot be loaded."""
    source = names.locate(path)
    if source.kind == "export":
        raise ModelError(
            f"{source}: is a SavedModel, whose weights cannot be changed, averaged or "
            "combined. Use the run folder or the .keras file"
        )
    return source


def load_run(folder):
    """Returns a run's recipe, its tokenizer and its model, whose weights are random.

    The weights of a run with adapters are those of its initial model.
    """
    from keras_transformer import pipelines
    from keras_transformer.layers.adapters import add_adapters, count_adapter_weights
    from keras_transformer.saving.checkpoints import count_stored_weights

    folder = pathlib.Path(folder)
    recipe = load_recipe(folder / names.CONFIG)
    tokenizer = pipelines.load_tokenizer(folder / names.TOKENIZER)
    lora = recipe.training.lora
    if lora:
        model = _read_base(folder, tokenizer)
        num_needed = count_adapter_weights(model, lora.rank, lora.layers)
    else:
        num_needed = count_parameters(model_settings(recipe, tokenizer))
    # The recipe may be untrusted, and building a huge model would take minutes.
    try:
        num_stored = count_stored_weights(folder / "checkpoints")
        keras_file.check_size(num_needed, num_stored)
    except ModelError as error:
        raise ModelError(
            f"{folder}: the checkpoint does not match config.yaml: {error}. Check that "
            "the recipe and the vocabulary are unchanged"
        ) from None
    if lora:
        add_adapters(model, **lora.model_dump())
    else:
        model = build_model(recipe, tokenizer)
    return recipe, tokenizer, model


def _read_base(folder, tokenizer):
    """Returns the initial model of a run that trains adapters."""
    fingerprint = tokenizer.fingerprint()
    return keras_file.read(folder / names.BASE_MODEL, fingerprint=fingerprint)


def model_settings(recipe, tokenizer):
    """Returns the arguments of the recipe's `Transformer`, except its dtype.

    If the targets are trees, the logits cover only the symbols of trees.
    """
    from keras_transformer.decoding.batches import select_target

    has_trees = recipe.data.kind == "trees"
    target = select_target(tokenizer)
    return {
        "vocabulary_size": target.vocabulary_size,
        **recipe.model.constructor_arguments(),
        "pad_id": target.pad_id,
        "output_size": target.num_symbols() if has_trees else target.num_outputs,
    }


def build_model(recipe, tokenizer):
    """Builds the recipe's `Transformer` with random weights."""
    from keras_transformer.transformer import Transformer

    precision = recipe.training.mixed_precision
    is_mixed = precision in ("bfloat16", "float16")
    model = Transformer(
        **model_settings(recipe, tokenizer),
        dtype=f"mixed_{precision}" if is_mixed else "float32",
    )
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    return model


def check_model(recipe):
    """Checks that a `Transformer` can be created with the recipe's settings."""
    from keras_transformer.transformer import Transformer

    arguments = recipe.model.constructor_arguments()
    try:
        Transformer(recipe.tokenizer.vocabulary_size, **arguments)
    except ValueError as error:
        raise ModelError(f"the recipe's model: {error}") from None


def load_model(path, allow_unsafe=False):
    """Loads a model and its tokenizer from a run, a `.keras` file, or a preset.

    A run without `model.keras` gives its newest checkpoint. Returns `(path, tokenizer,
    model)`, with the path of the file or folder that was read.
    """
    from keras_transformer import pipelines
    from keras_transformer.transformer import Transformer

    source = _locate_weights(path)
    path = source.path
    if source.kind == "preset":
        model, tokenizer, _ = load_preset(path)
        if tokenizer is None:
            raise ModelError(f"{path}: this preset has a model but no tokenizer")
    elif source.weights:
        path = source.weights
        tokenizer = pipelines.load_tokenizer(source.tokenizer)
        model = keras_file.read(path, allow_unsafe, tokenizer.fingerprint())
    else:
        from keras_transformer.saving.checkpoints import average_checkpoints

        if not names.checkpoint_paths(path / "checkpoints"):
            raise ModelError(
                f"{path}: this run has no model yet: neither model.keras nor a "
                "checkpoint"
            )
        recipe, tokenizer, model = load_run(path)
        average_checkpoints(model, path / "checkpoints", last=1, interrupted=True)
        if recipe.training.lora:
            from keras_transformer.layers.adapters import merge_adapters

            adapted, model = model, _read_base(path, tokenizer)
            merge_adapters(adapted, model)
    if not isinstance(model, Transformer):
        raise ModelError(
            f"{path}: must contain a Transformer. Received: {type(model).__name__}"
        )
    keras_file.check_vocabularies(path, model, tokenizer)
    check_finite(path, model.weights)
    return path, tokenizer, model


def load_preset_model(preset, model_class=None, **changes):
    """Loads the `Transformer` of a preset, which may lack a tokenizer."""
    source = names.locate(preset)
    if source.kind != "preset":
        raise ModelError(
            f"{preset}: not a preset: config.json or model.weights.h5 is missing. To "
            "open a run or a .keras file, use `open_model`"
        )
    return load_preset(source.path, model_class=model_class, **changes).model


def check_matches_recipe(path, tokenizer, model, recipe):
    """Checks that a model and its tokenizer match a recipe."""
    expected = _comparable(recipe.model.constructor_arguments())
    actual = _comparable(model.get_config())
    pairs = [(f"model.{name}", expected[name], actual[name]) for name in ARCHITECTURE]
    target = tokenizer.target
    vocabulary = {"vocabulary_size": target.vocabulary_size, "kind": target.kind}
    if tokenizer.kind not in ("marian", "fairseq"):  # their `target` is another object
        vocabulary["shared"] = target is tokenizer
    for name, value in vocabulary.items():
        pairs.append((f"tokenizer.{name}", getattr(recipe.tokenizer, name), value))
    wrong = [
        f"{key} is {in_model} in the model but {in_recipe} in the recipe"
        for key, in_recipe, in_model in pairs
        if in_recipe != in_model
    ]
    if wrong:
        raise ModelError(f"{path}: model does not match the recipe: {'; '.join(wrong)}")


def _comparable(arguments):
    """Adds default head sizes and removes `_WEIGHTLESS` variations."""
    changes = arguments["variations"] or {}
    changes = {name: changes[name] for name in changes if name not in _WEIGHTLESS}
    return with_head_dims({**arguments, "variations": changes or None})
