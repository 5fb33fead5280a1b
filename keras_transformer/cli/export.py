"""keras-transformer export"""

import enum
import json
import pathlib
from typing import Annotated

import typer

from keras_transformer.cli.console import existing
from keras_transformer.cli.console import opened_model
from keras_transformer.cli.console import verb
from keras_transformer.cli.text_lines import Patience
from keras_transformer.errors import UserError


class Format(enum.StrEnum):
    SAVED_MODEL = "saved_model"
    CTRANSLATE2 = "ctranslate2"


class TokenizerOps(enum.StrEnum):
    """Whose operations split texts in the export."""

    TEXT = "text"
    CORE = "core"


@verb
def export(
    model: Annotated[
        pathlib.Path,
        typer.Argument(metavar="RUN", help="A run folder or a .keras file."),
    ],
    folder: Annotated[
        pathlib.Path,
        typer.Argument(metavar="FOLDER", help="Where to: saved_models/NAME."),
    ],
    format: Annotated[
        Format, typer.Option(help="A SavedModel, or a folder for CTranslate2.")
    ] = Format.SAVED_MODEL,
    quantization: Annotated[
        str | None,
        typer.Option(help="For CTranslate2: none, int8, int16, float16 or bfloat16."),
    ] = None,
    beam_size: Annotated[
        int | None, typer.Option(min=1, help="Default: the run's, or 4.")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(min=0, help="Alpha. Default: the run's, or 0.6.")
    ] = None,
    patience: Patience = None,
    tokenizer_ops: Annotated[
        TokenizerOps,
        typer.Option(
            help="The tokenizer's operations: those of tensorflow-text, or "
            "TensorFlow's own (core), slower, the same ids, byte pairs only."
        ),
    ] = TokenizerOps.TEXT,
    parallel_parts: Annotated[
        int,
        typer.Option(
            min=1,
            help="Parts of a batch searched side by side: a CPU's cores, for few "
            "large requests.",
        ),
    ] = 1,
    jit_compile: Annotated[
        bool,
        typer.Option(
            "--jit-compile",
            help="Search texts that come one at a time by programs that XLA compiles "
            "at the first text of a length. Not for TF-Serving.",
        ),
    ] = False,
    scores: Annotated[
        pathlib.Path | None,
        typer.Option(help="For MODEL_CARD.md: what `evaluate --json` printed."),
    ] = None,
    license: Annotated[
        str | None, typer.Option("--license", help="For MODEL_CARD.md: the licence.")
    ] = None,
):
    """Write a SavedModel for TF-Serving: text in, text out.

    It goes to FOLDER/1, or to the next free number. A folder for CTranslate2 is
    FOLDER itself; its search is set where it is used.

    \b
    keras-transformer export runs/mine saved_models/mine --license CC-BY-4.0
    keras-transformer export runs/mine saved_models/fast --format ctranslate2 \\
      --quantization int8
    """
    existing(model)
    if format == Format.CTRANSLATE2:
        if scores is not None or license is not None:
            raise UserError("--scores and --license need --format saved_model")
        if tokenizer_ops != TokenizerOps.TEXT:
            raise UserError("--tokenizer-ops needs --format saved_model")
        if parallel_parts != 1:
            raise UserError("--parallel-parts needs --format saved_model")
        if jit_compile:
            raise UserError("--jit-compile needs --format saved_model")
        if (beam_size, length_penalty, patience) != (None, None, None):
            raise UserError(
                "--beam-size, --length-penalty and --patience are CTranslate2's own "
                "arguments: give them to its translate_batch"
            )
        opened = opened_model(model, needs=["model"])
        from keras_transformer.export import export_ctranslate2

        typer.echo(
            export_ctranslate2(
                *(opened.model, opened.tokenizer, folder, quantization or "none")
            )
        )
        return
    if quantization is not None:
        raise UserError("--quantization needs --format ctranslate2")
    known = _scores(scores) if scores is not None else ()
    search = {"beam_size": beam_size, "length_penalty": length_penalty}
    search["patience"] = patience
    changed = {name: value for name, value in search.items() if value is not None}
    opened = opened_model(model, needs=["model"])
    from keras_transformer.export import export_translator

    typer.echo(
        export_translator(
            opened.with_search(**changed) if changed else opened,
            folder,
            scores=known,
            license=license,
            tokenizer_ops=tokenizer_ops.value,
            parallel_parts=parallel_parts,
            jit_compile=jit_compile,
        )
    )


def _scores(path):
    """The results in a file of `evaluate --json`."""
    try:
        results = json.loads(path.read_text(encoding="utf-8"))["results"]
        return [
            {"name": _name(each), "signature": each["signature"]}
            | {"score": float(each["score"])}
            for each in results
        ]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: not what `evaluate --json` prints") from None


def _name(result):
    """A result's name, with the sentences that it is of where they are not all."""
    limit = result.get("max_words")
    return result["name"] + (f", at most {limit} words" if limit is not None else "")
