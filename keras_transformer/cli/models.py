"""keras-transformer info, models, export, import and extend-vocabulary"""

import itertools
import json
import pathlib
from typing import Annotated, Literal

import typer
from typer import Argument, Option

import keras_transformer as kt
from keras_transformer.cli import console, options
from keras_transformer.errors import UserError
from keras_transformer.files import replace_folder
from keras_transformer.pipelines.lines import read_lines
from keras_transformer.untrusted import escape_controls


def info(model: options.Model, as_json: options.Json = False):
    """Describe a model: size, training, scores and files.

    \b
    keras-transformer info runs/mine
    keras-transformer info saved_models/mine --json
    """
    model = console.find_model(model)
    from keras_transformer.machine import format_bytes

    # Describing a run that has only checkpoints loads TensorFlow.
    with console.quiet_libraries():
        description = kt.saving.model_info(model)
    if as_json:
        # The JSON is ASCII, because untrusted names could control a terminal.
        typer.echo(json.dumps(description, indent=2))
        return
    description["size"] = format_bytes(description.pop("bytes"))
    sizes = description["files"].items()
    description["files"] = {file: format_bytes(size) for file, size in sizes}
    description["scores"] = {
        f"{each['name']} ({each['how']})": each["score"]
        for each in description["scores"]
    }
    for line in _lines(description):
        typer.echo(escape_controls(line))


def _lines(values, indent=""):
    """Yields the lines of a nested mapping, without values that are `None` or empty."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            inner = [*_lines(value, f"{indent}  ")]
            if inner:
                yield f"{indent}{name}:"
                yield from inner
        elif value not in (None, {}, []):
            yield f"{indent}{name}: {_format(value)}"


def _format(value):
    if isinstance(value, list):
        return ", ".join(map(_format, value))
    if isinstance(value, float):
        return f"{value:,.6g}"
    return f"{value:,}" if type(value) is int else str(value)


def models():
    """List the packaged models.

    Commands that open a model, except corpus, accept these names instead of a path.

    \b
    keras-transformer models
    keras-transformer info phrases
    echo "3 September 2021" | keras-transformer translate phrases
    """
    found = kt.saving.names.packaged_models()
    width = max(map(len, found), default=0)
    for name, folder in found.items():
        description = kt.saving.keras_file.read_metadata(folder).description
        typer.echo(f"{name:{width}}  {description}")


_WITH_CARD = ("saved_model", "preset", "huggingface", "marian")
# Options that only some formats accept.
_FORMATS_OF = {
    "quantization": ("ctranslate2", "preset", "huggingface"),
    "score_file": _WITH_CARD,
    "license": _WITH_CARD,
    "tokenizer_ops": ("saved_model",),
    "parallel_parts": ("saved_model",),
    "jit_compile": ("saved_model",),
    "constraints": ("saved_model",),
}


def export(
    model: options.WeightsModel,
    folder: Annotated[
        pathlib.Path,
        Argument(metavar="FOLDER", help="Output folder, e.g. saved_models/NAME."),
    ],
    format: Annotated[
        Literal["saved_model", "ctranslate2", "preset", "huggingface", "marian"],
        Option(
            help="Output format: a SavedModel for TF-Serving, a preset, or a model for "
            "CTranslate2, Hugging Face transformers or Marian."
        ),
    ] = "saved_model",
    quantization: Annotated[
        str | None,
        Option(
            metavar="TYPE",
            help="Type of the weights. CTranslate2: none, int8, int8_float32, int16, "
            "float16 or bfloat16. Presets and transformers: none or float16.",
        ),
    ] = None,
    beam_size: options.BeamSize = None,
    length_penalty: options.LengthPenalty = None,
    patience: options.Patience = None,
    decoding: options.Decoding = (),
    tokenizer_ops: Annotated[
        Literal["tensorflow-text", "tensorflow"],
        Option(help="Package of the tokenizer's operations."),
    ] = "tensorflow-text",
    parallel_parts: Annotated[
        int,
        Option(
            min=1,
            max=1_000,
            metavar="N",
            help="Number of parts into which a batch is split, to be translated in "
            "parallel.",
        ),
    ] = 1,
    jit_compile: Annotated[
        bool, Option(help="Compile beam search with XLA for requests of a single text.")
    ] = False,
    constraints: Annotated[
        bool, Option(help="Add a signature that takes prefixes and required phrases.")
    ] = False,
    score_file: Annotated[
        pathlib.Path | None,
        Option(help="Output of `evaluate --json`, to include in MODEL_CARD.md."),
    ] = None,
    license: Annotated[
        str | None,
        Option("--license", metavar="NAME", help="License to name in MODEL_CARD.md."),
    ] = None,
    adapters: options.Adapters = (),
    allow_unsafe: options.AllowUnsafe = False,
):
    """Export a model as a SavedModel or in another format.

    By default, the command writes a SavedModel that takes and returns text, to FOLDER/1
    or the next free number. The other formats are written to FOLDER itself. The format
    `marian` requires a post-norm model that was trained with `model.start: zeros` and
    `model.timescales: tensor2tensor`.

    With --tokenizer-ops tensorflow, the export needs no tensorflow-text, but is slower
    and supports BPE only. TF-Serving cannot run exports with --jit-compile.

    \b
    keras-transformer export runs/mine saved_models/mine --license CC-BY-4.0
    keras-transformer export runs/mine saved_models/fast --format ctranslate2 \\
      --quantization int8
    keras-transformer export runs/mine presets/mine --format preset \\
      --quantization float16
    """
    model = console.find_model(model)
    console.require_folder_path(folder)
    given = {
        "quantization": quantization,
        "score_file": score_file,
        "license": license,
        "tokenizer_ops": (
            tokenizer_ops if tokenizer_ops != "tensorflow-text" else None
        ),
        "parallel_parts": parallel_parts if parallel_parts != 1 else None,
        "jit_compile": jit_compile or None,
        "constraints": constraints or None,
    }
    given = {name: each for name, each in given.items() if each is not None}
    for name in given:
        if format not in _FORMATS_OF[name]:
            formats = " or ".join(_FORMATS_OF[name])
            raise UserError(f"`{name}`: needs --format {formats}")
    search = options.search(beam_size, length_penalty, patience, decoding)
    if search and format == "ctranslate2":
        raise UserError(
            "CTranslate2's format contains no search settings. Pass beam_size, "
            "length_penalty (of the form length^alpha), patience and others to its "
            "translate_batch"
        )
    if score_file is not None:
        given["scores"] = _read_scores(given.pop("score_file"))
    if format != "ctranslate2" and given.pop("quantization", "none") != "none":
        if quantization != "float16":
            raise UserError(
                f"--quantization {quantization}: must be none or float16 for {format}"
            )
        given["dtype"] = quantization
    translator = console.open_translator(
        *(model, ["export"]),
        search=search,
        allow_unsafe=allow_unsafe,
        adapters=adapters,
    )
    if format == "ctranslate2":
        path = kt.interop.export_ctranslate2(
            translator.model, translator.tokenizer, folder, **given
        )
    elif format == "saved_model":
        path = kt.export.export_translator(translator, folder, **given)
    else:
        room = kt.export if format == "preset" else kt.interop
        path = getattr(room, f"export_{format}")(translator, folder, **given)
    if format == "huggingface":
        is_multilingual = translator.tokenizer.kind == "fairseq"
        name = "AutoTokenizer" if is_multilingual else "MarianTokenizer"
        console.print_status(
            f"load it in transformers with AutoModelForSeq2SeqLM and {name}"
        )
    typer.echo(path)


def _read_scores(path):
    """Returns the name, signature and score of each result of `evaluate --json`."""
    from pydantic import create_model

    from keras_transformer.untrusted import read_json

    console.require_exists(path)
    optional = (int | None, None)
    result = create_model(
        "Result", name=str, signature=str, score=float | None, max_words=optional
    )
    output = create_model("Output", results=list[result])
    try:
        results = read_json(path, output).results
    except UserError as error:
        raise UserError(
            f"{error}. Write the file with `evaluate MODEL ... --json > scores.json`"
        ) from None
    scores = []
    for each in results:
        name = each.name
        if each.max_words is not None:
            name += f", at most {each.max_words} words"
        if each.score is not None:  # `null` stands for an infinite perplexity
            score = {"name": name, "signature": each.signature, "score": each.score}
            scores.append(score)
    return scores


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
    "sentencepiece.bpe.model",
    "tokenizer.json",
    "special_tokens_map.json",
    "text.json",
    "README.md",
)
# Files to download if the repository has no safetensors.
_TORCH_PATTERNS = (*_PATTERNS, "pytorch_model.bin")


def import_(
    path: Annotated[
        str,
        Argument(
            metavar="MODEL",
            help="Folder of a Marian or Hugging Face model, or hf://OWNER/NAME.",
        ),
    ],
    output: Annotated[
        pathlib.Path, Argument(metavar="FOLDER", help="Folder to create.")
    ],
    engine: Annotated[
        Literal["marian", "huggingface"] | None,
        Option(
            help="Toolkit whose results to match (default: the toolkit of the folder's "
            "format)."
        ),
    ] = None,
    source_language: Annotated[
        str | None,
        Option(
            metavar="CODE", help="Default source language of M2M100, NLLB, mBART-50."
        ),
    ] = None,
    target_language: Annotated[
        str | None,
        Option(metavar="CODE", help="Default target language of a multilingual model."),
    ] = None,
    normalize: Annotated[
        Literal["opus"] | None,
        Option(help="Normalize punctuation and control characters as OPUS-MT did."),
    ] = None,
):
    """Import a Marian, OPUS-MT, M2M100, NLLB or mBART-50 model.

    Commands such as translate, score, export and train --from accept FOLDER like a run
    folder. Models with .bin files need `pip install torch`.

    \b
    keras-transformer import hf://Helsinki-NLP/opus-mt-en-de models/en-de
    keras-transformer import downloads/opus-mt-en-fr models/en-fr
    keras-transformer import hf://facebook/nllb-200-distilled-600M models/nllb \\
      --source-language eng_Latn --target-language fra_Latn
    """
    console.require_new(output)
    folder = _local_folder(path)

    console.load_tensorflow()
    from keras_transformer.interop.from_huggingface import is_huggingface_folder
    from keras_transformer.pipelines.tokenizers.marian import languages

    is_huggingface = is_huggingface_folder(folder)
    settings = engine, target_language, normalize
    if source_language is not None and not is_huggingface:
        raise UserError(
            f"{folder}: Marian models have no source language. Omit --source-language"
        )
    with console.quiet_libraries():
        if is_huggingface:
            imported = kt.interop.import_huggingface(folder, *settings, source_language)
        else:
            imported = kt.interop.import_marian(folder, *settings)
    if kt.saving.names.is_hub_name(path):
        # huggingface_hub names the downloaded folder after the commit.
        imported.card_rows["imported from"] = f"{path}, commit {folder.name}"
    kt.interop.write_imported(imported, output)
    for name, value in imported.card_rows.items():
        console.print_status(f"{name}: {value}")
    if imported.license:
        limits = ", which forbids commercial use" * ("-nc" in imported.license.lower())
        console.print_status(f"license: {imported.license}{limits}")
    if imported.decoding["beam_size"] == 1:
        console.print_status("search: greedy. Pass --beam-size 4 for better results")
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
    if not kt.saving.names.is_hub_name(path):
        folder = pathlib.Path(path)
        if not folder.exists():
            raise UserError(
                f"{path}: no such file or folder. For a model on the Hugging Face Hub, "
                "pass hf://OWNER/NAME"
            )
        return folder
    from keras_transformer.interop.arrays import require_torch

    folder = kt.saving.hub.download(path, _PATTERNS)
    if not any(folder.glob("*.safetensors")):
        require_torch(path)  # before gigabytes are downloaded
        folder = kt.saving.hub.download(path, _TORCH_PATTERNS)
    return folder


_NUM_SHOWN = 10


def extend_vocabulary(
    model: Annotated[
        pathlib.Path,
        Argument(
            metavar="MODEL",
            help="Run folder, .keras file, preset, packaged model, or "
            "hf://OWNER/NAME, with a vocabulary of the kind bpe.",
        ),
    ],
    output: Annotated[
        pathlib.Path,
        Option("--output", "-o", metavar="FOLDER", help="Folder to create."),
    ],
    size: Annotated[
        int, Option(min=1, help="Maximum number of subwords to add per vocabulary.")
    ],
    source: Annotated[
        list[pathlib.Path],
        Option("--source", "-s", help="New text in the source language."),
    ] = (),
    target: Annotated[
        list[pathlib.Path],
        Option("--target", "-t", help="New text in the target language."),
    ] = (),
    text: Annotated[
        list[pathlib.Path], Option(help="New text in either language.")
    ] = (),
    allow_unsafe: options.AllowUnsafe = False,
):
    """Add subwords from new text to a model's vocabulary.

    The vocabulary must be of the kind bpe, which no import has. Existing subwords keep
    their ids and weights. The weights of a new one start as the mean of those of its
    parts, so train the new model with `train --from FOLDER`.

    --source, --target and --text are repeatable. If source and target have separate
    vocabularies, --source extends the source's and --target the target's.

    \b
    keras-transformer extend-vocabulary runs/mine --source new.en --target new.de \\
      --size 500 --output grown
    """
    model = console.find_model(model)
    paths = [*source, *target, *text]
    if not paths:
        raise UserError("pass at least one of --source, --target and --text")
    console.require_exists(*paths)
    console.require_new(output)

    if allow_unsafe:
        console.warn_unsafe(model)
    console.load_tensorflow()
    with console.quiet_libraries():
        _, tokenizer, old = kt.saving.load.load_model(model, allow_unsafe)
    is_shared = tokenizer.target is tokenizer
    if text and tokenizer.kind == "bpe" and not is_shared:
        raise UserError(
            f"{model}: has separate vocabularies. Pass --source and --target instead "
            "of --text"
        )
    # A shared vocabulary is extended through `target_lines`, with text from all files.
    target_lines, source_lines = (
        itertools.chain.from_iterable(map(read_lines, files))
        for files in ((paths, ()) if is_shared else (target, source))
    )
    new, extended_tokenizer = kt.runs.extend_vocabulary(
        old, tokenizer, target_lines, size, source_lines
    )
    names = kt.saving.names
    with replace_folder(output, must_be_new=True) as temporary:
        extended_tokenizer.save(temporary / names.TOKENIZER)
        kt.saving.keras_file.save_model(
            new, temporary / names.MODEL, extended_tokenizer.fingerprint()
        )
    if not is_shared:
        _print_added(tokenizer.source, extended_tokenizer.source, "source ")
    _print_added(
        tokenizer.target, extended_tokenizer.target, "" if is_shared else "target "
    )
    console.print_status(
        f"run train --from {output}, so that the model learns to use the new subwords"
    )
    typer.echo(output / names.MODEL)


def _print_added(tokenizer, extended_tokenizer, side):
    """Prints the subwords that were added to one vocabulary."""
    added = extended_tokenizer.pieces()[tokenizer.vocabulary_size :]
    more = ", ..." if len(added) > _NUM_SHOWN else ""
    console.print_status(
        f"{len(added)} {side}subwords added: {', '.join(added[:_NUM_SHOWN])}{more}"
    )
    console.print_status(
        f"{extended_tokenizer.vocabulary_size} {side}subwords in total"
    )
