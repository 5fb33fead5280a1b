"""keras-transformer demo"""

import pathlib
import resource
import sys
import time
from typing import Annotated

import typer

import keras_transformer
from keras_transformer.cli.console import load_tensorflow
from keras_transformer.cli.console import opened_model
from keras_transformer.cli.console import progress
from keras_transformer.cli.console import refuse_workers
from keras_transformer.cli.console import say
from keras_transformer.cli.console import verb

NUM_SHOWN = 5


@verb
def demo(
    output: Annotated[
        pathlib.Path, typer.Option("--output", "-o", metavar="RUN", help="Run folder.")
    ] = pathlib.Path("runs/demo"),
    saved_model: Annotated[
        pathlib.Path, typer.Option("--export", help="Where to export to.")
    ] = pathlib.Path("saved_models/demo"),
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Replace a key of the recipe."),
    ] = None,
):
    """See all of it on embedded data, in about 5 minutes.

    The data are phrases that CLDR writes in two languages: dates, times, numbers,
    amounts, measures, names. No network is used.

    \b
    keras-transformer demo
    keras-transformer demo --set data.target_locale=fr --output runs/demo_fr \\
      --export saved_models/demo_fr
    """
    from keras_transformer.recipes import load_recipe

    refuse_workers("demo")
    recipe = load_recipe("phrases", overrides or ())
    started = time.monotonic()

    def stage(number, what):
        say(f"[{number}/4] {what} ({time.monotonic() - started:.0f} s so far)")

    say("At most about 5 minutes on 2 CPU cores.")
    if (output / "config.yaml").exists():
        say(f"{output} holds a run already, which goes on; --output names another")
    stage(1, f"training the recipe phrases, {recipe.training.steps} steps")

    load_tensorflow()
    from keras_transformer import evaluation
    from keras_transformer.pipelines.sources.phrases import phrases

    try:
        keras_transformer.train(recipe, output, progress=True)
    except KeyboardInterrupt:
        say("interrupted; the same command goes on from the last checkpoint")
        raise typer.Exit(130) from None

    data = recipe.data
    test = phrases(
        data.source_locale,
        data.target_locale,
        size=data.size,
        seed=data.seed,
        held_out=data.held_out,
    ).test
    sources, references = map(list, zip(*test, strict=True))
    stage(2, f"translating {len(test)} phrases that training never saw")
    run = opened_model(output)
    hypotheses = _translate(run, sources)
    exact = 100 * sum(map(str.__eq__, hypotheses, references)) / len(test)
    bleu = evaluation.bleu(hypotheses, references)

    stage(3, "exporting")
    exported = run.export(saved_model)
    stage(4, "translating with the exported model")
    served = _translate(opened_model(exported), sources[:NUM_SHOWN])

    width = max(map(len, sources[:NUM_SHOWN]))
    for source, translation in zip(sources[:NUM_SHOWN], served, strict=True):
        typer.echo(f"{source:{width}}  ->  {translation}")
    # In KiB, on macOS in bytes.
    unit = 2**30 if sys.platform == "darwin" else 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    typer.echo(
        f"\nexact: {exact:.1f} % of {len(test)} held-out phrases\n"
        f"{bleu.metric}: {bleu.score:.2f}  {bleu.signature}\n"
        f"time: {time.monotonic() - started:.0f} s, memory: {peak:.1f} GiB at most\n"
        f"run: {output} (model, tokenizer, checkpoints, logs)\n"
        f"SavedModel: {exported} (takes and returns text; needs no keras_transformer)\n"
        f'more: echo "{sources[0]}" | keras-transformer translate {exported}'
    )


def _translate(model, sentences):
    with progress("translating", len(sentences), "phrases") as advance:
        translated = model.translate(sentences)
        advance(len(sentences))
    return [candidates[0].text for candidates in translated]
