"""Where a trained model lies: a run's folder or a `.keras` file, and what is in it.

Reading sections of a recipe out of one needs no TensorFlow; loading weights does.
"""

import pathlib

from keras_transformer.errors import ModelError
from keras_transformer.recipes import load_recipe
from keras_transformer.saving.keras_file import check_keras_file
from keras_transformer.saving.keras_file import check_tokenizer
from keras_transformer.saving.keras_file import load_keras_file
from keras_transformer.saving.names import CONFIG
from keras_transformer.saving.names import TOKENIZER
from keras_transformer.saving.names import keras_file
from keras_transformer.saving.names import tokenizer_folder

_TOKENIZER_FILES = {"tokenizer.model": "bpe", "tokenizer.json": "word_piece"}
# Arguments of a model that have to be the same for its weights to mean the same.
SHAPE = (
    *("num_layers", "d_model", "d_ff", "num_heads", "key_dim", "value_dim"),
    *("positions", "max_length", "normalization", "activation"),
    *("attention_window", "score"),
)
_REGULARISATION = ("dropout", "attention_dropout")


def file_config(path):
    """The `Transformer`'s constructor arguments that a `.keras` file holds.

    Raises:
        ModelError: it is damaged, refused, or another model's.
    """
    try:
        return check_keras_file(path)["settings"]
    except ModelError as error:
        raise ModelError(str(error)) from error


def recipe_keys(path):
    """What a recipe must say for a training that begins with a model's weights.

    Args:
        path: A run's folder or a `.keras` file with its tokenizer beside it.

    Returns:
        Mapping of keys, dotted where they are not whole sections, to values.

    Raises:
        ModelError: no model there, or no tokenizer.
    """
    file = keras_file(path)
    folder = file.parent if file else pathlib.Path(path)
    keys = {"training.initial_model": str(path)}
    if (folder / CONFIG).is_file():
        recipe = load_recipe(folder / CONFIG)
        keys["model"] = recipe.model.model_dump()
        keys["tokenizer"] = recipe.tokenizer.model_dump()
    if file is None:
        return keys
    config = file_config(file)
    if "model" not in keys:
        names = (*SHAPE, *_REGULARISATION)
        keys["model"] = {name: config[name] for name in names}
    if "tokenizer" not in keys:
        keys["tokenizer"] = {"kind": _tokenizer_kind(folder)}
    keys["tokenizer"]["vocabulary_size"] = config["vocabulary_size"]
    return keys


def _tokenizer_kind(folder):
    folder = tokenizer_folder(folder)
    for name, kind in _TOKENIZER_FILES.items():
        if (folder / name).is_file():
            return kind
    raise ModelError(f"{folder}: no tokenizer here ({' or '.join(_TOKENIZER_FILES)})")


def load_run(folder):
    """What a run folder says about its model.

    Returns:
        `(recipe, tokenizer, model)`; the model has fresh weights.

    Raises:
        RecipeError: `config.yaml` is missing or not a recipe.
        DataError: the tokenizer is missing or damaged.
    """
    from keras_transformer import pipelines

    folder = pathlib.Path(folder)
    recipe = load_recipe(folder / CONFIG)
    tokenizer = pipelines.load_tokenizer(folder / TOKENIZER)
    return recipe, tokenizer, build_model(recipe, tokenizer)


def build_model(recipe, tokenizer):
    """The recipe's `Transformer`, built, with fresh weights.

    Where the targets are trees, it makes logits of their symbols alone.
    """
    from keras_transformer.transformer import Transformer

    precision = recipe.training.mixed_precision
    mixed = precision in ("bfloat16", "float16")
    model = Transformer(
        tokenizer.vocabulary_size,
        **recipe.model.constructor_arguments(),
        output_size=tokenizer.num_symbols() if recipe.data.kind == "trees" else None,
        dtype=f"mixed_{precision}" if mixed else "float32",
    )
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    return model


def check_model(recipe):
    """Raises `ModelError` where no `Transformer` can have a recipe's arguments."""
    from keras_transformer.transformer import Transformer

    arguments = recipe.model.constructor_arguments()
    try:
        Transformer(recipe.tokenizer.vocabulary_size, **arguments)
    except ValueError as error:
        raise ModelError(f"the recipe's model: {error}") from None


def load_model(path, allow_unsafe=False):
    """A model and its tokenizer, with weights.

    Args:
        path: A run's folder, of which `model.keras` is taken or else the newest
            checkpoint, or a `.keras` file with its tokenizer beside it.
        allow_unsafe: Whether a `.keras` file may hold more than a model of ours does,
            and so may run any code.

    Returns:
        `(path, tokenizer, model)`: the file or folder that the weights are from.

    Raises:
        ModelError: nothing there, no model in it, one that is refused, or not the
            tokenizer's model.
        DataError: the tokenizer is missing or damaged.
    """
    from keras_transformer import pipelines

    file = keras_file(path)
    if file is None:
        path = pathlib.Path(path)
        tokenizer, model = _load_checkpoint(path)
    else:
        path = file
        tokenizer = pipelines.load_tokenizer(tokenizer_folder(file.parent))
        model = _load_file(file, tokenizer, allow_unsafe)
    if tokenizer.vocabulary_size != model.vocabulary_size:
        raise ModelError(
            f"{path}: the model has {model.vocabulary_size} sub-words, the "
            f"tokenizer beside it {tokenizer.vocabulary_size}"
        )
    return path, tokenizer, model


def _load_file(path, tokenizer, allow_unsafe):
    from keras_transformer.transformer import Transformer

    try:
        model = load_keras_file(path, allow_unsafe)
        check_tokenizer(path, tokenizer.fingerprint())
    except ModelError as error:
        raise ModelError(str(error)) from error
    if not isinstance(model, Transformer):
        raise ModelError(f"{path}: holds a {type(model).__name__}, no Transformer")
    return model


def _load_checkpoint(folder):
    """A run that has no `model.keras` yet: its newest checkpoint."""
    from keras_transformer.saving.checkpoints import average_checkpoints
    from keras_transformer.saving.checkpoints import checkpoint_paths

    if not checkpoint_paths(folder / "checkpoints"):
        raise ModelError(
            f"{folder}: this run has no model yet: neither model.keras nor a checkpoint"
        )
    _, tokenizer, model = load_run(folder)
    average_checkpoints(model, folder / "checkpoints", last=1)
    return tokenizer, model


def check_fits(path, tokenizer, model, recipe):
    """Tells in one line where a model is not the one that a recipe describes.

    Args:
        path: What to call the model.
        tokenizer: The model's.
        model: `Transformer`.
        recipe: `Recipe`.

    Raises:
        ModelError: sizes or kinds differ; both are named.
    """
    wanted = _resolved(recipe.model.constructor_arguments())
    there = _resolved(model.get_config())
    pairs = [(f"model.{name}", wanted[name], there[name]) for name in SHAPE]
    for name in ("vocabulary_size", "kind"):
        expected = getattr(recipe.tokenizer, name)
        pairs.append((f"tokenizer.{name}", expected, getattr(tokenizer, name)))
    wrong = [
        f"{key} is {expected} in the recipe, {found} there"
        for key, expected, found in pairs
        if expected != found
    ]
    if wrong:
        raise ModelError(f"{path}: not the recipe's model: {'; '.join(wrong)}")


def _resolved(arguments):
    """The arguments with the values that stand for None filled in."""
    inferred = arguments["d_model"] // arguments["num_heads"]
    filled = dict(arguments)
    for name in ("key_dim", "value_dim"):
        filled[name] = filled[name] or inferred
    return filled
