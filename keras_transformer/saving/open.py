"""Opening of trained models for translation."""

from keras_transformer.errors import ModelError
from keras_transformer.recipes import load_recipe
from keras_transformer.saving.load import load_model
from keras_transformer.saving.names import CONFIG, locate_model
from keras_transformer.saving.preset import is_preset, read_task
from keras_transformer.saving.saved_model import ExportedTranslator, newest_version


def open_model(path, *, ensemble=(), allow_unsafe=False, parallel_parts=1, warn=None):
    """Opens a model for translation.

    Args:
        path: A run's folder, a `.keras` file with its tokenizer next to it, the folder
            of a preset or of an export, the name of a packaged model, such as
            `"phrases"`, or `"hf://OWNER/NAME"` for a preset on the Hugging Face Hub. An
            existing path takes precedence over a name. For an export, the newest
            version is opened, unless `path` is the folder of one version.
        ensemble: Paths of further runs, `.keras` files and presets with the same
            vocabulary. The probabilities of all models are averaged.
        allow_unsafe: Whether to read files unchecked. Such files can run any code.
        parallel_parts: Number of batches that are translated or scored in parallel (see
            `Translator`).
        warn: Called with a text's index and a message if a text is too long. By
            default, warnings are logged (see `Translator`).

    Returns:
        A `Translator` with the search settings of the run's recipe or of the preset.
        For a SavedModel, an `ExportedTranslator`, which has fewer methods. Both have
        two more attributes: `path` is the file or folder that was read. `data` is the
        section `data` of the recipe, or `None` if there is no recipe.

    Raises:
        ModelError: If there is no model, it is unsafe or damaged, it does not match
            its tokenizer, or the models of an ensemble differ in vocabulary.
        RecipeError: If the run's `config.yaml` is invalid.
        DataError: If the tokenizer is missing or damaged.
    """
    path = locate_model(path)
    version = newest_version(path) if path.is_dir() else None
    if version is not None and not ensemble:
        return ExportedTranslator(version, allow_unsafe, parallel_parts, warn)
    settings, recipe = _translator_settings(path)
    path, tokenizer, model = load_model(path, allow_unsafe)
    if ensemble:
        model = _load_ensemble(path, tokenizer, model, ensemble, allow_unsafe)

    from keras_transformer.decoding.translator import Translator

    try:
        opened = Translator(
            model,
            tokenizer,
            batch_tokens=None,
            parallel_parts=parallel_parts,
            warn=warn,
            **settings,
        )
    except ValueError as error:
        raise ModelError(f"{path}: {error}") from None
    opened.path = path
    opened.data = recipe.data if recipe else None
    return opened


def _translator_settings(path):
    """Returns the arguments of `Translator` stored with a model, and its recipe."""
    from keras_transformer.decoding.options import BeamSearch

    recipe = read_recipe(path)
    task = read_task(path) if is_preset(path) else None
    if recipe is not None:
        search, max_source_length = recipe.decoding, recipe.data.max_length
    elif task is not None:
        search, max_source_length = task.search, task.max_source_length
    else:
        return {}, None
    search = BeamSearch(**search.model_dump())
    return {"search": search, "max_source_length": max_source_length}, recipe


def read_recipe(path):
    """Returns the recipe of a run's folder or a `.keras` file in it, or `None`."""
    if is_preset(path):
        return None
    config = (path if path.is_dir() else path.parent) / CONFIG
    return load_recipe(config) if config.is_file() else None


def _load_ensemble(path, tokenizer, model, ensemble, allow_unsafe):
    """Returns an `Ensemble` of a model and the models at the paths in `ensemble`."""
    from keras_transformer.decoding.ensemble import Ensemble

    models = [model]
    for other_path in ensemble:
        other_path, other, model = load_model(other_path, allow_unsafe)
        if other.fingerprint() != tokenizer.fingerprint():
            raise ModelError(
                f"{other_path}: must have the same vocabulary as {path}, like all "
                "models of an ensemble"
            )
        models.append(model)
    try:
        return Ensemble(models)
    except ValueError as error:
        raise ModelError(f"{path}: {error}") from None
