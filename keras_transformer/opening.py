"""Opening of trained models for translation."""

from keras_transformer.errors import ModelError
from keras_transformer.interop.peft import apply_adapters
from keras_transformer.saving.load import load_model
from keras_transformer.saving.names import locate
from keras_transformer.saving.preset import read_task


def open_model(
    path,
    *,
    ensemble=(),
    adapters=(),
    allow_unsafe=False,
    parallel_parts=1,
    warn=None,
):
    """Opens a model for translation.

    Args:
        path: Folder of a run, of an imported model, of a preset or of an export, a
            `.keras` file with its tokenizer next to it, the name of a packaged model,
            such as `"phrases"`, or `"hf://OWNER/NAME"` for a preset on the Hugging Face
            Hub. An existing path takes precedence over a name. Of an export, the newest
            version is opened, unless `path` is the folder of one version.
        ensemble: Paths of further runs, `.keras` files and presets with the same
            vocabulary. The probabilities of all models are averaged.
        adapters: Folders of adapters, of runs with `training.lora` (`RUN/adapters`) or
            of PEFT. Their products are added to the model's kernels in turn, but not to
            those of an ensemble's other models.
        allow_unsafe: Whether to read files unchecked. Such files can run any code.
        parallel_parts: Number of batches that are translated or scored in parallel (see
            `Translator`).
        warn: Called with the index of a text and each warning about its translation
            (see `Translator`). If `None`, warnings are logged.

    Returns:
        A `Translator` with the search settings of the run's recipe or of the preset.
        For a SavedModel, an `ExportedTranslator`, which has fewer methods. Both have
        two more attributes: `path` is the file or folder that was read. `data` is the
        section `data` of the recipe, or `None` if there is no recipe.

    Raises:
        ModelError: If there is no model, it is unsafe or damaged, it does not match
            its tokenizer, the models of an ensemble differ in vocabulary, or
            adapters do not fit.
        RecipeError: If the run's `config.yaml` is invalid.
        DataError: If the tokenizer is missing or damaged.

    Examples:
        >>> translator = kt.open_model("phrases")
        >>> translator.translate(["3 September 2021", "12 euros"])
        ['3. September 2021', '12 Euro']
    """
    source = locate(path)
    if source.kind == "export" and not ensemble and not adapters:
        from keras_transformer.export.exported_translator import ExportedTranslator

        return ExportedTranslator(source.weights, allow_unsafe, parallel_parts, warn)
    recipe = source.recipe()
    task = read_task(source.path) if source.kind == "preset" else None
    settings = {}  # that are stored with the model
    if recipe is not None:
        settings = {"search": recipe.decoding}
        settings["max_source_length"] = recipe.data.max_length
    elif task is not None:
        settings = {"search": task.search, "max_source_length": task.max_source_length}
    path, tokenizer, model = load_model(source, allow_unsafe)
    if adapters:
        apply_adapters(model, adapters)
    if ensemble:
        model = _load_ensemble(path, tokenizer, model, ensemble, allow_unsafe)

    from keras_transformer.decoding.options import BeamSearch
    from keras_transformer.decoding.translator import Translator

    if settings:
        settings["search"] = BeamSearch(**settings["search"].model_dump())
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
    opened.low_score = task.low_score if task else None
    return opened


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
