"""Commands `keras-transformer corpus prepare`, `translate` and `score`."""

import pathlib
import re
from typing import Annotated

import typer
from typer import Argument, Option

from keras_transformer.cli import console, options
from keras_transformer.cli.command import Command
from keras_transformer.errors import UserError

corpus = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Prepare, translate or score a corpus with Apache Beam.",
)

Export = Annotated[pathlib.Path, Argument(metavar="MODEL", help="SavedModel folder.")]
Sources = Annotated[
    list[str],
    Option(
        "--source",
        "-s",
        metavar="FILE",
        help="Text file, plain or compressed. Repeatable.",
    ),
]
Targets = Annotated[
    list[str],
    Option(
        "--target",
        "-t",
        metavar="FILE",
        help="Translations of the --source files, in the same order. Repeatable.",
    ),
]
# A string, since a path would turn gs:// into gs:/.
OutputFolder = Annotated[
    str, Option("--output", "-o", metavar="FOLDER", help="Output folder.")
]
BatchSize = Annotated[int, Option(min=1, help="Maximum lines per batch.")]
PipelineOptions = Annotated[
    list[str],
    Option(
        metavar="OPTION",
        help="Pipeline option of Apache Beam, e.g. runner=FlinkRunner. Repeatable.",
    ),
]


@corpus.command("prepare", cls=Command)
def prepare_corpus(
    model: Annotated[
        pathlib.Path,
        Argument(metavar="MODEL", help="Run folder or tokenizer folder."),
    ],
    source: Sources,
    target: Targets,
    output: OutputFolder,
    num_shards: Annotated[int, Option(min=1, help="Number of files to write.")] = 16,
    max_length: Annotated[
        int, Option(min=1, help="Maximum subwords per side, including the end id.")
    ] = 256,
    max_ratio: Annotated[
        float | None,
        Option(
            min=1,
            help="Maximum ratio of the longer to the shorter side, in subwords "
            "(default: none).",
        ),
    ] = None,
    deduplicate: Annotated[
        bool, Option(help="Keep only the first of identical pairs.")
    ] = False,
    pipeline_option: PipelineOptions = (),
):
    """Tokenize, filter and shard a corpus with Apache Beam.

    Requires the extra `apache-beam`.

    \b
    keras-transformer corpus prepare runs/sample --output ids \\
      -s a.en.gz -t a.de.gz -s b.en.gz -t b.de.gz
    """
    pipeline_options = _command_line_options(pipeline_option)
    _check_and_load(model)
    from keras_transformer.beam.corpus import encode_with_apache_beam
    from keras_transformer.pipelines.sources.records import describe_dropped

    metadata = encode_with_apache_beam(
        source,
        target,
        model / "tokenizer" if (model / "tokenizer").is_dir() else model,
        output,
        shards=num_shards,
        max_length=max_length,
        max_ratio=max_ratio,
        deduplicate=deduplicate,
        pipeline_options=pipeline_options,
    )
    kept = f"{metadata['num_pairs']:,} of {metadata['num_read']:,} pairs kept"
    dropped = describe_dropped(metadata["dropped"])
    console.print_status(f"{kept}; dropped: {dropped}" if dropped else kept)


@corpus.command("translate", cls=Command)
def translate_corpus(
    model: Export,
    source: Sources,
    output: OutputFolder,
    batch_size: BatchSize = 64,
    pipeline_option: PipelineOptions = (),
    allow_unsafe: options.AllowUnsafe = False,
):
    """Translate text files with an exported model and Apache Beam.

    Requires the extra `apache-beam`.

    \b
    keras-transformer corpus translate saved_models/mine --output translated \\
      -s a.en -s b.en --pipeline-option direct_num_workers=2 \\
      --pipeline-option direct_running_mode=multi_processing
    """
    run = {"batch_size": batch_size, "allow_unsafe": allow_unsafe}
    _run("translate", model, source, output, [], pipeline_option, run)


@corpus.command("score", cls=Command)
def score_pairs(
    model: Export,
    source: Sources,
    target: Targets,
    output: OutputFolder,
    batch_size: BatchSize = 64,
    pipeline_option: PipelineOptions = (),
    allow_unsafe: options.AllowUnsafe = False,
):
    """Score translations with an exported model and Apache Beam.

    Requires the extra `apache-beam`.

    \b
    keras-transformer corpus score saved_models/mine --output scores \\
      -s a.en -t a.de
    """
    run = {"batch_size": batch_size, "allow_unsafe": allow_unsafe}
    _run("score", model, source, output, target, pipeline_option, run)


def _run(task, model, source, output, target, pipeline_option, arguments):
    """Runs a task. `arguments` are others of `run_with_apache_beam`."""
    pipeline_options = _command_line_options(pipeline_option)
    _check_and_load(model)
    from keras_transformer.beam.inference import run_with_apache_beam

    export = console.find_model(model)
    console.require_export(export)
    if arguments["allow_unsafe"]:
        console.warn_unsafe(export)
    run_with_apache_beam(
        *(export.weights.resolve(), task, source, output, target),
        pipeline_options=pipeline_options,
        **arguments,
    )


def _command_line_options(options):
    for each in options:
        if not re.fullmatch(r"\w+(=.*)?", each):
            raise UserError(
                f"--pipeline-option {each}: must have the form NAME or NAME=VALUE"
            )
    return [f"--{each}" for each in options]


def _check_and_load(model):
    """Checks that the model and Apache Beam exist, and loads TensorFlow."""
    console.require_exists(model)
    console.require_extra("apache-beam", "apache_beam")
    console.load_tensorflow()
