"""keras-transformer import"""

import enum
import pathlib
from typing import Annotated

import typer
from typer import Argument, Option

from keras_transformer.cli import console
from keras_transformer.errors import UserError

# Files to download from a Hugging Face repository.
_PATTERNS = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*.safetensors",
    "source.spm",
    "target.spm",
    "vocab.json",
    "target_vocab.json",
    "README.md",
)
# Files to download if the repository has no safetensors.
_TORCH_PATTERNS = (*_PATTERNS, "pytorch_model.bin")


class Engine(enum.StrEnum):
    MARIAN = "marian"
    HUGGINGFACE = "huggingface"


class Normalization(enum.StrEnum):
    OPUS = "opus"


def import_model(
    path: Annotated[
        str,
        Argument(
            metavar="PATH",
            help="Folder of a Marian or Hugging Face model, or hf://OWNER/NAME.",
        ),
    ],
    output: Annotated[
        pathlib.Path, Argument(metavar="OUTPUT", help="Folder to create.")
    ],
    engine: Annotated[
        Engine | None,
        Option(
            help="Toolkit whose results to match (default: the toolkit of the folder's "
            "format)."
        ),
    ] = None,
    target_language: Annotated[
        str | None,
        Option(metavar="CODE", help="Target language of a multilingual model."),
    ] = None,
    normalize: Annotated[
        Normalization | None,
        Option(help="Normalize punctuation and control characters as OPUS-MT did."),
    ] = None,
):
    """Import a Marian, OPUS-MT or Hugging Face model.

    Commands such as translate, score, export and train --from accept OUTPUT like a run
    folder.

    \b
    keras-transformer import opus-mt-en-de models/en-de
    keras-transformer import hf://Helsinki-NLP/opus-mt-en-fr models/en-fr
    """
    if output.exists():
        raise UserError(f"{output}: already exists")
    console.require_folder_path(output)
    folder = _local_folder(path)

    console.load_tensorflow()
    from keras_transformer.interop.from_huggingface import (
        import_huggingface,
        is_huggingface_folder,
    )
    from keras_transformer.interop.from_marian import import_marian
    from keras_transformer.interop.imported import write_imported
    from keras_transformer.pipelines.tokenizers.marian import languages
    from keras_transformer.saving.names import is_hub_name

    is_huggingface = is_huggingface_folder(folder)
    read = import_huggingface if is_huggingface else import_marian
    with console.quiet_libraries():
        imported = read(folder, engine, target_language, normalize)
    if is_hub_name(path):
        # huggingface_hub names the downloaded folder after the commit.
        imported.card_rows["imported from"] = f"{path}, commit {folder.name}"
    write_imported(imported, output)
    for name, value in imported.card_rows.items():
        console.print_status(f"{name}: {value}")
    known = languages(imported.tokenizer.pieces())
    if known and target_language is None:
        console.print_status(
            f"target languages: {', '.join(known)}. Begin texts with >>{known[0]}<<, "
            "or import with --target-language"
        )
    if folder.is_file():  # decoder.yml
        folder = folder.parent
    if normalize is None and (folder / "preprocess.sh").is_file():
        console.print_status(
            "the folder's preprocess.sh is not used. Import with --normalize opus to "
            "normalize texts as OPUS-MT did"
        )
    typer.echo(output)


def _local_folder(path):
    """Returns the model's folder, downloaded if `path` is `hf://OWNER/NAME`."""
    from keras_transformer.saving.names import is_hub_name

    if not is_hub_name(path):
        folder = pathlib.Path(path)
        console.require_exists(folder)
        return folder
    from keras_transformer.saving.hub import download

    folder = download(path, _PATTERNS)
    if not any(folder.glob("*.safetensors")):
        folder = download(path, _TORCH_PATTERNS)
    return folder
