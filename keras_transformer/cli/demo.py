"""keras-transformer demo"""

import pathlib
import resource
import sys
import time
from typing import Annotated

import typer
from typer import Option

import keras_transformer
from keras_transformer.cli import common, console, options

_NUM_SHOWN = 5


def demo(
    output: Annotated[
        pathlib.Path, Option("--output", "-o", metavar="RUN", help="Run folder.")
    ] = pathlib.Path("runs/demo"),
    saved_model: Annotated[
        pathlib.Path, Option("--export", help="Folder for the SavedModel.")
    ] = pathlib.Path("saved_models/demo"),
    overrides: options.Overrides = (),
):
    """Train, evaluate and export a model in a few minutes.

    The data are phrases from Unicode's CLDR in two languages: dates, times, numbers,
    amounts of money, measurements and names. The Babel package includes them, so no
    network is needed.

    \b
    keras-transformer demo
    keras-transformer demo --set data.target_locale=fr --output runs/demo_fr \\
      --export saved_models/demo_fr
    """
    from keras_transformer.recipes import load_recipe

    console.refuse_workers("demo")
    for folder in (output, saved_model):
        console.require_folder_path(folder)
    recipe = load_recipe("phrases", overrides)
    started = time.monotonic()

    def begin_stage(number, text):
        seconds = time.monotonic() - started
        console.print_status(f"[{number}/4] {text} ({seconds:.0f} s so far)")

    console.print_status("The demo takes a few minutes on two CPU cores.")
    if (output / "config.yaml").exists():
        console.print_status(
            f"resuming the run in {output}; --output selects another folder"
        )
    begin_stage(1, f'training for {recipe.training.steps} steps (recipe "phrases")')

    console.load_tensorflow()
    from keras_transformer import evaluation
    from keras_transformer.export import export_translator
    from keras_transformer.runs.corpora import load_scored_pairs

    with console.resume_hint("resume"):
        keras_transformer.train(recipe, output, progress=not common.current.quiet)

    sources, references = load_scored_pairs(recipe, "test")
    begin_stage(2, f"translating {len(sources)} held-out phrases")
    translator = console.open_translator(output)
    hypotheses = translator.translate(sources)
    exact = 100 * sum(map(str.__eq__, hypotheses, references)) / len(sources)
    bleu = evaluation.bleu(hypotheses, references)

    begin_stage(3, "exporting")
    exported = export_translator(translator, saved_model)
    begin_stage(4, "translating with the exported model")
    shown = sources[-_NUM_SHOWN:]
    served = console.open_translator(exported).translate(shown)

    width = max(map(len, shown))
    for source, translation in zip(shown, served, strict=True):
        typer.echo(f"{source:{width}}  ->  {translation}")
    # macOS reports bytes instead of KiB.
    unit = 2**30 if sys.platform == "darwin" else 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    typer.echo(
        f"\nexact matches: {exact:.1f}% of {len(sources)} held-out phrases\n"
        f"{bleu.metric}: {bleu.score:.2f}  {bleu.signature}\n"
        f"time: {time.monotonic() - started:.0f} s, peak memory: {peak:.1f} GiB\n"
        f"run: {output} (model, tokenizer, checkpoints, logs)\n"
        f"SavedModel: {exported} "
        "(translates text; can be served without this package)\n"
        f'try: echo "{shown[0]}" | keras-transformer translate {exported}'
    )
