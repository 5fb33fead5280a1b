"""Download and upload of presets, with the package huggingface_hub."""

import os
import pathlib
import re

from keras_transformer.errors import ModelError
from keras_transformer.errors import install_hint
from keras_transformer.saving.preset import EXTRA_FILES
from keras_transformer.saving.preset import FILES
from keras_transformer.saving.preset import TOKENIZER_ASSETS
from keras_transformer.untrusted import shorten

_NAME = re.compile(r"hf:/+([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
# README.md of a repository, which the Hub shows as the model's page.
_README = """---
library_name: keras_transformer
pipeline_tag: translation
---
A Transformer of the package keras_transformer (`keras-transformer-seq2seq`):

    import keras_transformer as kt

    kt.open_model("hf://{}").translate(["..."])
"""


def download(name, patterns=(*FILES, f"{TOKENIZER_ASSETS}/*", *EXTRA_FILES)):
    """Downloads a repository's files into the cache of huggingface_hub.

    Args:
        name: `hf://OWNER/NAME`, or `hf://OWNER/NAME@REVISION` for a branch, a tag or a
            commit.
        patterns: Names of the files to download, with `*` for any characters.

    Returns:
        Path of the folder in the cache.

    Raises:
        ModelError: If the name is invalid, huggingface_hub is not installed, or the
            repository cannot be read.
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
    """Uploads a folder to a repository, which is created if necessary.

    Args:
        folder: Folder of a preset. If it contains no `README.md`, one is written.
        name: `OWNER/NAME` or `hf://OWNER/NAME`. The suffix `@BRANCH` selects a branch.
        private: Whether a new repository is private.

    Returns:
        URL of the commit.

    Raises:
        ModelError: If the name is invalid, huggingface_hub is not installed, or the
            repository cannot be written, for instance without a login.
        OSError: If `README.md` cannot be written.
    """
    repository, revision = _parse(name if name.startswith("hf:") else f"hf://{name}")
    hub = _import_hub(name)
    readme = pathlib.Path(folder) / "README.md"
    if not os.path.lexists(readme):
        readme.write_text(_README.format(repository), encoding="utf-8")
    try:
        hub.create_repo(repository, private=private, exist_ok=True)
        return str(
            hub.upload_folder(
                repo_id=repository,
                folder_path=str(folder),
                revision=revision,
                commit_message="Upload a preset of keras_transformer",
            )
        )
    except Exception as error:
        raise ModelError(f"{name}: cannot be uploaded: {shorten(error)}") from error


def repository_name(name):
    """Returns `NAME` of `hf://OWNER/NAME[@REVISION]`.

    Raises:
        ModelError: If the name is invalid.
    """
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
