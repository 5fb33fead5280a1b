"""The command line, whose commands are imported when they are used."""

import importlib
import json
import os
import pathlib
import platform
from typing import Annotated

import typer
from typer import Option
from typer.core import TyperCommand, TyperGroup

import keras_transformer

# Commands in the order in which users need them, with the first line of each docstring.
GROUPS = {
    "Use a model": {
        "translate": "Translate text line by line, or a document.",
        "import": "Import a Marian, OPUS-MT, M2M100, NLLB or mBART-50 model.",
        "models": "List the packaged models.",
        "info": "Describe a model: size, training, scores and files.",
    },
    "Train": {
        "demo": "Train, evaluate and export a model in a few minutes.",
        "init": "Write a commented recipe to edit.",
        "train": "Train a model or resume an interrupted run.",
        "plot": "Draw the training curves of runs.",
        "average": "Average the last checkpoints of a run into one model.",
        "distill": "Train a fast model on the translations of a larger one.",
        "extend-vocabulary": "Add subwords from new text to a model's vocabulary.",
        "repeat": "Train a recipe with several seeds and report the spread.",
        "ablate": "Train the model variations of the paper's Table 3.",
    },
    "Measure": {
        "evaluate": "Translate a test set and score it with sacreBLEU.",
        "score": "Print the natural log-probability of given translations.",
        "compare": "Test whether systems differ significantly.",
        "visualize": "Draw a model's attention as a picture and a web page.",
    },
    "Deploy": {
        "export": "Export a model as a SavedModel or in another format.",
        "serve": "Serve a model over HTTP, with TF-Serving's REST API.",
    },
    "Text and trees": {
        "filter": "Remove improbable pairs from a noisy parallel corpus.",
        "corpus": "Prepare, translate or score a corpus with Apache Beam.",
        "parse": "Print the bracketed constituency tree of each line.",
    },
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}
# Modules of the commands that have no module of their own name.
_MODULES = {
    **dict.fromkeys(("demo", "init"), "train"),
    **dict.fromkeys(("plot", "average", "repeat", "ablate"), "runs"),
    **dict.fromkeys(("export", "info", "extend-vocabulary", "import"), "models"),
    **dict.fromkeys(("score", "compare"), "evaluate"),
    "parse": "translate",
}


class Commands(TyperGroup):
    """Command group that imports a command's module when the command is used.

    This makes `--help` a third faster.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for name, text in COMMANDS.items():
            self.add_command(TyperCommand(name, short_help=text))

    def format_commands(self, ctx, formatter):
        for name, commands in GROUPS.items():
            with formatter.section(name):
                formatter.write_dl(list(commands.items()))

    def resolve_command(self, ctx, args):
        if args[0] in COMMANDS:
            self.add_command(load_command(args[0]), args[0])
        return super().resolve_command(ctx, args)


def load_command(name: str) -> TyperCommand | TyperGroup:
    """Imports a command's module and returns the command with its parameters."""
    from keras_transformer.cli.command import Command

    module = _MODULES.get(name, name)
    module = importlib.import_module(f"keras_transformer.cli.{module}")
    # "import" is a keyword.
    command = getattr(module, "import_" if name == "import" else name.replace("-", "_"))
    if not isinstance(command, typer.Typer):
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(name, cls=Command)(command)
        command = single
    return typer.main.get_command(command)


# Rich is not used, because its boxes would split messages over several lines.
app = typer.Typer(
    name="keras-transformer",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_requested: bool):
    if not is_requested:
        return
    backend = _keras_backend()
    typer.echo(
        f"keras-transformer {keras_transformer.__version__}\n"
        f"TensorFlow {_version('tensorflow')}\n"
        f"Keras {_version('keras')}, backend {backend} {_version(backend)}\n"
        f"Python {platform.python_version()}"
    )
    raise typer.Exit


def _version(name):
    """Returns the version of a distribution, without importing it for seconds."""
    # At the top of the module, this import would slow down --help by more than 10%.
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _keras_backend():
    """Returns the name of the backend that Keras would choose when it is imported."""
    if os.environ.get("KERAS_BACKEND"):
        return os.environ["KERAS_BACKEND"]
    folder = os.environ.get("KERAS_HOME") or pathlib.Path.home() / ".keras"
    try:
        text = pathlib.Path(folder, "keras.json").read_text(encoding="utf-8")
        return str(json.loads(text)["backend"])
    except (OSError, ValueError, LookupError, TypeError):
        return "tensorflow"


@app.callback()
def keras_transformer_command(
    version: Annotated[
        bool,
        Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the versions of this package, TensorFlow and Keras.",
        ),
    ] = False,
):
    """Train, evaluate, export and run Transformers that translate.

    \b
    keras-transformer translate europarl_en_fr       use a packaged model
    keras-transformer import hf://OWNER/NAME FOLDER  import a model
    keras-transformer demo                           try everything in minutes
    keras-transformer init my.yaml                   write a recipe to edit
    keras-transformer train                          list the packaged recipes
    """
