"""Presets: folders with a model, its tokenizer and its search settings.

The file names match KerasHub's presets. No file can contain code.
"""

import dataclasses
import datetime
import json
import pathlib
import shutil
from typing import Annotated, Literal, NamedTuple

import pydantic

from keras_transformer.errors import ModelError
from keras_transformer.files import replace_folder
from keras_transformer.recipes.data_sections import Section
from keras_transformer.recipes.schema import DecodingSettings
from keras_transformer.saving import keras_file, names
from keras_transformer.saving.keras_file import METADATA
from keras_transformer.saving.stored_weights import convert_weights
from keras_transformer.untrusted import parse_json, read_json

# Relative to the preset's folder.
TASK = "task.json"
TOKENIZER_CONFIG = "tokenizer.json"
FILES = (names.PRESET_CONFIG, names.PRESET_WEIGHTS, METADATA, TASK, TOKENIZER_CONFIG)
README = "README.md"
EXTRA_FILES = (names.CARD, names.SUMMARY, README, "recipe.yaml")
DTYPES = (None, "float16")


class Preset(NamedTuple):
    """The content of a preset, as `load_preset` returns it.

    Attributes:
        model: `Transformer`.
        tokenizer: Tokenizer of source and target, or `None`.
        task: `TaskSettings`, or `None`.
    """

    model: object
    tokenizer: object
    task: object


class TaskSettings(Section):
    """Arguments of `Translator` in `task.json`.

    Attributes:
        search: Settings of beam search.
        max_source_length: Maximum number of subwords that are translated together.
        low_score: Mean log-probability per subword below which a translation has a
            warning, or `None`.
    """

    search: DecodingSettings
    max_source_length: Annotated[int, pydantic.Field(ge=2, lt=2**30)]
    low_score: Annotated[float, pydantic.Field(lt=0)] | None = None


class _Task(Section):
    module: Literal["keras_transformer.decoding.translator"]
    class_name: Literal["Translator"]
    registered_name: Literal["keras_transformer>Translator"]
    config: TaskSettings


class _TokenizerSettings(Section):
    kind: str
    vocabulary_size: pydantic.PositiveInt
    fingerprint: str


class _Tokenizer(Section):
    module: str
    class_name: str
    registered_name: str
    config: _TokenizerSettings


def save_preset(
    model,
    folder,
    tokenizer=None,
    *,
    search=None,
    max_source_length=256,
    low_score=None,
    dtype=None,
    description=None,
    texts=None,
):
    """Writes a preset. An existing one is replaced once all files are on disk.

    Args:
        model: `Transformer`.
        folder: Folder to write. An existing folder must be empty or contain a complete
            preset and nothing else. Its `README.md` is kept unless `texts` has one.
        tokenizer: Tokenizer of the source, with the tokenizer of the targets as its
            `target`. If `None`, the preset has none.
        search: `BeamSearch` to store. If `None`, the default search is stored. Without
            a tokenizer, `search` and `max_source_length` are ignored.
        max_source_length: Maximum length of a source in subwords (see `Translator`).
        low_score: Attribute of the `Translator` that opens the preset.
        dtype: `"float16"` stores the weights in half precision. If `None`, they have
            the precision of the variables. Loading converts them to the model's dtype.
        description: One-line description, stored in `metadata.json`.
        texts: Additional files, as a mapping of names to text, such as
            `{"MODEL_CARD.md": card}`.

    Returns:
        `folder` as a `pathlib.Path`.

    Raises:
        ModelError: If the folder contains anything but a preset, the tokenizer does not
            match the model, or a weight exceeds the range of `dtype`. If `load_preset`
            would refuse the settings, such as a custom activation.
        TypeError: If `search` is not a `BeamSearch`.
        ValueError: If `dtype` is unknown.

    Examples:
        >>> model = kt.Transformer.from_size("tiny", vocabulary_size=100)
        >>> folder = kt.saving.save_preset(model, "preset")
        >>> kt.saving.load_preset(folder).model.vocabulary_size
        100
    """
    from keras_transformer.decoding.options import BeamSearch, check_type

    folder = pathlib.Path(folder)
    search = BeamSearch() if search is None else search
    check_type(search, BeamSearch, "search")
    if dtype not in DTYPES:
        raise ValueError(f'`dtype` must be `None` or "float16". Received: {dtype!r}.')
    _check_replaceable(folder)
    if tokenizer is not None:
        keras_file.check_vocabularies(folder, model, tokenizer)
    if not model.built:
        model.build(keras_file.INPUT_SHAPES)
    with replace_folder(folder) as temporary:
        _write_model(model, temporary, dtype)
        metadata = _metadata(model, tokenizer, description)
        _write_json(temporary / METADATA, metadata)
        if tokenizer is not None:
            kind, settings = type(tokenizer), _tokenizer_settings(tokenizer)
            described = _serialized(kind.__module__, kind.__name__, settings)
            _write_json(temporary / TOKENIZER_CONFIG, described)
            tokenizer.save(temporary / names.TOKENIZER_ASSETS)
            settings = dataclasses.asdict(search)
            settings = {"search": settings, "max_source_length": max_source_length}
            settings |= {} if low_score is None else {"low_score": low_score}
            module = "keras_transformer.decoding.translator"
            task = _serialized(module, "Translator", settings)
            _write_json(temporary / TASK, task, _Task)
        if (folder / README).is_file():
            shutil.copy2(folder / README, temporary)
        for name, text in (texts or {}).items():
            (temporary / name).write_text(text, encoding="utf-8")
    return folder


def _write_model(model, folder, dtype):
    import keras

    config = keras.saving.serialize_keras_object(model)
    for key in ("build_config", "compile_config"):
        config.pop(key, None)
    _write_json(folder / names.PRESET_CONFIG, config, keras_file.SerializedModel)
    model.save_weights(folder / names.PRESET_WEIGHTS)
    if dtype is not None:
        convert_weights(folder / names.PRESET_WEIGHTS, dtype)


def _tokenizer_settings(tokenizer):
    return {
        "kind": tokenizer.kind,
        "vocabulary_size": tokenizer.vocabulary_size,
        "fingerprint": tokenizer.fingerprint(),
    }


def load_preset(folder, model_class=None, **changes):
    """Loads a preset after checking it like a `.keras` file.

    Args:
        folder: The preset's folder.
        model_class: Class of the model. If `None`, `Transformer`.
        **changes: Arguments of the model that override the preset's.

    Returns:
        `Preset`.

    Raises:
        ModelError: If a file fails the checks or is damaged, or the weights do not
            match the model.
        DataError: If the tokenizer is damaged.
        ValueError: If `changes` are invalid.

    Examples:
        >>> model = kt.Transformer(100, num_layers=1, d_model=16, d_ff=16, num_heads=2)
        >>> folder = kt.saving.save_preset(model, "preset")
        >>> preset = kt.saving.load_preset(folder, dropout=0.2)
        >>> preset.model.get_config()["dropout"], preset.tokenizer, preset.task
        (0.2, None, None)
    """
    folder = pathlib.Path(folder)
    stored = keras_file.check_preset(folder)
    task, tokenizer = read_task(folder), _load_tokenizer(folder)
    model = keras_file.load_stored(folder, stored, model_class, **changes)
    return Preset(model, tokenizer, task)


def read_task(folder):
    """Returns the `TaskSettings` of a preset, or `None` if it has no tokenizer."""
    path = pathlib.Path(folder) / TASK
    return read_json(path, _Task, error=ModelError).config if path.exists() else None


def _check_replaceable(folder):
    """Raises a `ModelError` if replacing the folder would delete any other files."""
    from keras_transformer.pipelines.tokenizers.registry import tokenizer_files

    if folder.exists() and not folder.is_dir():
        raise ModelError(f"{folder}: must be a folder, not a file")
    if not folder.exists() or not any(folder.iterdir()):
        return
    known = {*FILES, *EXTRA_FILES}
    known |= {f"{names.TOKENIZER_ASSETS}/{name}" for name in tokenizer_files()}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if name not in known and (path.is_symlink() or not path.is_dir()):
            raise ModelError(
                f"{folder}: contains {name}, which is not part of a preset. "
                "Choose another folder"
            )
    if not names.is_preset(folder):
        raise ModelError(
            f"{folder}: must contain a complete preset, with {names.PRESET_CONFIG} and "
            f"{names.PRESET_WEIGHTS}, or nothing. Choose another folder, or delete "
            "this one"
        )


def _metadata(model, tokenizer, description):
    """Returns the content of `metadata.json`."""
    import keras

    from keras_transformer import __version__

    optional = {} if description is None else {"description": description}
    return {
        **optional,
        "keras_version": keras.version(),
        "keras_transformer_version": __version__,
        "parameter_count": model.count_params(),
        "date_saved": datetime.datetime.now().strftime("%Y-%m-%d@%H:%M:%S"),
        "tasks": [] if tokenizer is None else ["Translator"],
    }


def _serialized(module, name, config):
    """Returns an object of a class as Keras describes it in JSON."""
    registered = f"keras_transformer>{name}"
    described = {"module": module, "class_name": name, "registered_name": registered}
    return {**described, "config": config}


def _load_tokenizer(folder):
    """Returns the tokenizer of a preset, or `None` if it has none."""
    path = folder / TOKENIZER_CONFIG
    if not path.exists():
        return None
    from keras_transformer import pipelines

    expected = read_json(path, _Tokenizer, error=ModelError).config
    tokenizer = pipelines.load_tokenizer(folder / names.TOKENIZER_ASSETS)
    for name, value in _tokenizer_settings(tokenizer).items():
        if value != getattr(expected, name):
            raise ModelError(
                f"{folder}: the tokenizer in {names.TOKENIZER_ASSETS} does not match "
                f"the {name} in {TOKENIZER_CONFIG}"
            )
    return tokenizer


def _write_json(path, value, layout=None):
    """Writes JSON, if it has the layout that reading will require."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    if layout is not None:
        parse_json(text, layout, f"cannot be stored in {path.name}", ModelError)
    path.write_text(text + "\n", encoding="utf-8")
