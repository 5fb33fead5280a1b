"""Download of a model's folder from the Hugging Face Hub."""

import pathlib
import re

from keras_transformer.errors import ModelError
from keras_transformer.untrusted import short

_NAME = re.compile(r"hf://([\w.-]+/[\w.-]+)")
# Files of a repository that are read. Code in it is never downloaded.
_FILES = (
    *("config.json", "generation_config.json", "tokenizer_config.json"),
    *("model.safetensors", "model.safetensors.index.json", "model-*.safetensors"),
    *("source.spm", "target.spm", "vocab.json", "target_vocab.json", "README.md"),
)


def download_folder(name):
    """Downloads the files of a model into the cache of huggingface_hub.

    Args:
        name: `hf://OWNER/NAME`.

    Returns:
        Path of the folder. It contains `pytorch_model.bin` only if there is no
        safetensors file.

    Raises:
        ModelError: If the name is invalid, or the repository cannot be read.
    """
    import huggingface_hub

    found = _NAME.fullmatch(name)
    if found is None:
        raise ModelError(f"{name}: must have the form hf://OWNER/NAME")

    def download(*patterns):
        path = huggingface_hub.snapshot_download(found[1], allow_patterns=patterns)
        return pathlib.Path(path)

    try:
        folder = download(*_FILES)
        if not any(folder.glob("*.safetensors")):
            folder = download(*_FILES, "pytorch_model.bin")
        return folder
    # Errors of the HTTP client, of the Hub, and of the file system.
    except Exception as error:
        raise ModelError(f"{name}: cannot be downloaded: {short(error)}") from error
