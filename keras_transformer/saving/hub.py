"""Download and upload of presets, with the package huggingface_hub."""

import os
import pathlib
import re

from keras_transformer.errors import ModelError, install_hint
from keras_transformer.saving.names import TOKENIZER_ASSETS
from keras_transformer.saving.preset import (
    EXTRA_FILES,
    FILES,
    README,
    TASK,
)
from keras_transformer.untrusted import shorten

_NAME = re.compile(r"hf:/+([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
# README.md of a repository, which the Hub shows as the model's page.
_README = """---
library_name: keras_transformer
pipeline_tag: translation
---
A Transformer of the package keras_transformer (`keras-transformer-seq2seq`):

    import keras_transformer as kt

    {call}
"""
_TRANSLATE = 'kt.open_model("hf://{}").translate(["..."])'
_LOAD_MODEL = 'model = kt.Transformer.from_preset("hf://{}")'  # without a tokenizer
_PATTERNS = (*FILES, f"{TOKENIZER_ASSETS}/*", *EXTRA_FILES)


def download(name, patterns=_PATTERNS):
    """Downloads a repository's files and returns their folder in the Hub's cache.

    `name` is `hf://OWNER/NAME`, optionally followed by `@` and a branch, tag or commit.
    `patterns` may contain `*`.
    """
    repository, revision = _parse(name)
    hub = _import_hub(name)
    try:
        folder = hub.snapshot_download(
            repository, revision=revision, allow_patterns=list(patterns)
        )
    # HTTP clients, the Hub, and the file system can raise exceptions of any type.
    except Exception as error:
        raise ModelError(f"{name}: cannot be downloaded: {shorten(error)}") from error
    return pathlib.Path(folder)


def upload(folder, name, private=False):
    """Uploads a preset to `OWNER/NAME`, a repository that is created if necessary.

    Replaces an earlier preset in the repository, but keeps the repository's `README.md`
    unless the folder has one. If neither has one, it is written. Returns the URL of the
    commit.
    """
    repository, revision = _parse(name if name.startswith("hf:") else f"hf://{name}")
    hub = _import_hub(name)
    folder = pathlib.Path(folder)
    call = (_TRANSLATE if (folder / TASK).exists() else _LOAD_MODEL).format(repository)
    try:
        hub.create_repo(repository, private=private, exist_ok=True)
        has_readme = hub.file_exists(repository, README, revision=revision)
        if not has_readme and not os.path.lexists(folder / README):
            (folder / README).write_text(_README.format(call=call), encoding="utf-8")
        return str(
            hub.upload_folder(
                repo_id=repository,
                folder_path=str(folder),
                revision=revision,
                commit_message="Upload a preset of keras_transformer",
                # Deletes files of an earlier preset that this preset lacks.
                delete_patterns=[each for each in _PATTERNS if each != README],
            )
        )
    except Exception as error:
        raise ModelError(f"{name}: cannot be uploaded: {shorten(error)}") from error


def repository_name(name):
    """Returns `NAME` of `hf://OWNER/NAME[@REVISION]`."""
    repository, _ = _parse(name)
    return repository.partition("/")[2]


def _parse(name):
    """Returns `(repository, revision)`. The revision is `None` for the newest."""
    match = _NAME.fullmatch(str(name))
    if match is None:
        raise ModelError(f"{name}: must have the form hf://OWNER/NAME[@REVISION]")
    return match.groups()


def _import_hub(name):
    try:
        import huggingface_hub
    except ImportError:
        raise ModelError(
            f"{name}: huggingface_hub is not installed: {install_hint('hub')}"
        ) from None
    return huggingface_hub
