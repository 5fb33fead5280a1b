"""keras-transformer beam"""

import enum
import importlib.util
import pathlib
from typing import Annotated

import typer

from keras_transformer.cli.console import existing
from keras_transformer.cli.console import load_tensorflow
from keras_transformer.cli.console import say
from keras_transformer.cli.console import verb
from keras_transformer.errors import UserError

Task = enum.StrEnum("Task", ["encode", "translate", "score"])


@verb
def beam(
    task: Annotated[Task, typer.Argument(help="What to do with the files.")],
    source: Annotated[
        list[str], typer.Option("--source", "-s", help="Text file; give it repeatedly.")
    ],
    # Not a Path, which would make gs:/ of gs://.
    output: Annotated[str, typer.Option("--output", "-o", help="Folder to write.")],
    target: Annotated[
        list[str] | None,
        typer.Option("--target", "-t", help="Its translation, as often as --source."),
    ] = None,
    model: Annotated[
        pathlib.Path | None,
        typer.Option(
            metavar="MODEL",
            help="encode: what has the tokenizer, a run's folder. Else a SavedModel.",
        ),
    ] = None,
    shards: Annotated[
        int, typer.Option(min=1, help="encode: number of files to write.")
    ] = 16,
    max_length: Annotated[
        int, typer.Option(min=1, help="encode: drop pairs of more sub-words.")
    ] = 256,
    max_ratio: Annotated[
        float | None,
        typer.Option(min=1, help="encode: drop pairs of lengths further apart."),
    ] = None,
    deduplicate: Annotated[
        bool, typer.Option("--deduplicate", help="encode: keep each pair once.")
    ] = False,
    batch_size: Annotated[
        int, typer.Option(min=1, help="translate, score: lines at a time.")
    ] = 64,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--beam",
            metavar="OPTION",
            help="Of Beam or its runner, such as runner=FlinkRunner.",
        ),
    ] = None,
):
    """Tokenize, translate or score a corpus with Apache Beam, on one machine or many.

    \b
    keras-transformer beam encode --model runs/sample --output ids \\
      -s a.en.gz -t a.de.gz -s b.en.gz -t b.de.gz
    keras-transformer beam translate --model saved_models/mine --output de \\
      -s a.en -s b.en --beam direct_num_workers=2 \\
      --beam direct_running_mode=multi_processing
    """
    if model is None:
        raise UserError("--model MODEL is missing")
    existing(model)
    if importlib.util.find_spec("apache_beam") is None:
        raise UserError(
            "Apache Beam is not installed: pip install keras-transformer-seq2seq[beam]"
        )
    targets, options = target or [], [f"--{each}" for each in option or ()]
    load_tensorflow()
    if task is Task.encode:
        from keras_transformer.distributed import corpus as beam_corpus

        facts = beam_corpus.encode_with_beam(
            source,
            targets,
            model / "tokenizer" if (model / "tokenizer").is_dir() else model,
            output,
            shards=shards,
            max_length=max_length,
            max_ratio=max_ratio,
            deduplicate=deduplicate,
            beam_options=options,
        )
        dropped = "".join(
            f", {count:,} {reason}" for reason, count in facts["dropped"].items()
        )
        say(f"{facts['num_pairs']:,} of {facts['num_read']:,} pairs kept{dropped}")
        return

    from keras_transformer.distributed import inference as beam_inference
    from keras_transformer.saving.saved_model import newest_version

    version = newest_version(model) if model.is_dir() else None
    if version is None:
        raise UserError(f"{model}: no SavedModel here; export writes one")
    beam_inference.run_with_beam(
        version.resolve(),
        task.value,
        source,
        output,
        targets,
        batch_size=batch_size,
        beam_options=options,
    )
