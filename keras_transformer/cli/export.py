"""keras-transformer export"""

import enum
import pathlib
from typing import Annotated

import typer
from typer import Argument, Option

from keras_transformer.cli import console, options
from keras_transformer.errors import UserError


class Format(enum.StrEnum):
    SAVED_MODEL = "saved_model"
    CTRANSLATE2 = "ctranslate2"
    PRESET = "preset"
    HUGGINGFACE = "huggingface"
    MARIAN = "marian"


_WITH_CARD = (Format.SAVED_MODEL, Format.PRESET, Format.HUGGINGFACE, Format.MARIAN)
# Options that only some formats accept.
_FORMATS_OF = {
    "quantization": (Format.CTRANSLATE2, Format.PRESET, Format.HUGGINGFACE),
    "scores": _WITH_CARD,
    "license": _WITH_CARD,
    "tokenizer_ops": (Format.SAVED_MODEL,),
    "parallel_parts": (Format.SAVED_MODEL,),
    "jit_compile": (Format.SAVED_MODEL,),
}


class TokenizerOps(enum.StrEnum):
    """Library whose operations tokenize texts in the export."""

    TEXT = "text"
    CORE = "core"


def export(
    model: options.WeightsModel,
    folder: Annotated[
        pathlib.Path,
        Argument(metavar="FOLDER", help="Output folder, e.g. saved_models/NAME."),
    ],
    format: Annotated[
        Format,
        Option(
            help="Output format: a SavedModel for TF-Serving, a preset, or a model for "
            "CTranslate2, Hugging Face transformers or Marian."
        ),
    ] = Format.SAVED_MODEL,
    quantization: Annotated[
        str | None,
        Option(
            help="Type of the weights. CTranslate2: none, int8, int8_float32, int16, "
            "float16 or bfloat16. Presets and transformers: none or float16."
        ),
    ] = None,
    beam_size: options.BeamSize = None,
    length_penalty: options.LengthPenalty = None,
    patience: options.Patience = None,
    tokenizer_ops: Annotated[
        TokenizerOps,
        Option(help="Tokenizer operations: tensorflow-text or core TensorFlow."),
    ] = TokenizerOps.TEXT,
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
        bool,
        Option(
            "--jit-compile",
            help="Compile beam search with XLA for requests of a single text.",
        ),
    ] = False,
    scores: Annotated[
        pathlib.Path | None,
        Option(help="Output of `evaluate --json`, to include in MODEL_CARD.md."),
    ] = None,
    license: Annotated[
        str | None, Option("--license", help="License to name in MODEL_CARD.md.")
    ] = None,
    allow_unsafe: options.AllowUnsafe = False,
):
    """Export a model as a SavedModel or in another format.

    By default, the command writes a SavedModel that takes and returns text, to FOLDER/1
    or the next free number. The other formats are written to FOLDER itself.
    CTranslate2 receives its search options with each call. Load a preset with
    `open_model` or `Transformer.from_preset`. Load the format `huggingface` in
    transformers with `AutoModelForSeq2SeqLM.from_pretrained` and
    `MarianTokenizer.from_pretrained`: a post-norm model becomes a Marian model, a
    pre-norm model a Pegasus model. The format `marian` requires a post-norm model that
    was trained with `model.start: zeros` and `model.position_rates: tensor2tensor`.

    With --tokenizer-ops core, the export needs no tensorflow-text. It returns the same
    ids, but is slower and supports BPE only.
    TF-Serving cannot run exports with --jit-compile.

    \b
    keras-transformer export runs/mine saved_models/mine --license CC-BY-4.0
    keras-transformer export runs/mine saved_models/fast --format ctranslate2 \\
      --quantization int8
    keras-transformer export runs/mine presets/mine --format preset \\
      --quantization float16
    """
    model = console.find_model(model)
    console.require_folder_path(folder)
    options_given = {
        "quantization": quantization,
        "scores": scores,
        "license": license,
        "tokenizer_ops": tokenizer_ops.value if tokenizer_ops != "text" else None,
        "parallel_parts": parallel_parts if parallel_parts != 1 else None,
        "jit_compile": jit_compile or None,
    }
    given = {name: each for name, each in options_given.items() if each is not None}
    for name in given:
        if format not in _FORMATS_OF[name]:
            option = f"--{name.replace('_', '-')}"
            formats = " or ".join(_FORMATS_OF[name])
            raise UserError(f"{option} needs --format {formats}")
    search = {"beam_size": beam_size, "length_penalty": length_penalty}
    search["patience"] = patience
    if format == Format.CTRANSLATE2 and set(search.values()) != {None}:
        raise UserError(
            "--beam-size, --length-penalty and --patience are arguments of "
            "CTranslate2's translate_batch; pass them there"
        )
    if scores is not None:
        given["scores"] = _read_scores(scores)
    if format != Format.CTRANSLATE2 and given.pop("quantization", "none") != "none":
        if quantization != "float16":
            raise UserError(
                f"--quantization {quantization}: must be none or float16 for {format}"
            )
        given["dtype"] = quantization
    translator = console.open_translator(
        model, ["export"], search=search, allow_unsafe=allow_unsafe
    )
    from keras_transformer import export as exports
    from keras_transformer import interop

    if format == Format.CTRANSLATE2:
        path = interop.export_ctranslate2(
            translator.model, translator.tokenizer, folder, **given
        )
    elif format == Format.SAVED_MODEL:
        path = exports.export_translator(translator, folder, **given)
    else:
        room = exports if format == Format.PRESET else interop
        path = getattr(room, f"export_{format}")(translator, folder, **given)
    if format == Format.HUGGINGFACE:
        console.print_status(
            "load it in transformers with AutoModelForSeq2SeqLM and MarianTokenizer"
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
        raise UserError(f"{error}; not an output of `evaluate --json`") from None
    return [
        {"name": _result_name(each), "signature": each.signature, "score": each.score}
        for each in results
        if each.score is not None  # `null` stands for an infinite perplexity
    ]


def _result_name(result):
    """Returns a result's name, with the maximum sentence length if there is one."""
    limit = result.max_words
    return result.name + (f", at most {limit} words" if limit is not None else "")
