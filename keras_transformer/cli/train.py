"""keras-transformer train, init and demo"""

import pathlib
import resource
import shlex
import sys
import time
from typing import Annotated

import typer
from typer import Argument, Option

import keras_transformer as kt
from keras_transformer.cli import console, options
from keras_transformer.errors import UserError
from keras_transformer.files import replace_text

# Number of translations that `demo` prints.
_NUM_SHOWN = 5


def train(
    recipe: Annotated[
        str | None,
        Argument(
            metavar="RECIPE",
            autocompletion=options.complete_recipe_names,
            help="Name of a packaged recipe, or a YAML file. Without it, the command "
            "lists the recipes.",
        ),
    ] = None,
    output: Annotated[
        pathlib.Path | None,
        Option(
            "--output",
            "-o",
            metavar="RUN",
            help="Run folder. Required, except with --dry-run.",
        ),
    ] = None,
    overrides: options.Overrides = (),
    initial_model: Annotated[
        pathlib.Path | None,
        Option(
            "--from",
            metavar="MODEL",
            help="Model to fine-tune: folder of a run or an import, .keras file, "
            "preset, packaged model, or hf://OWNER/NAME.",
        ),
    ] = None,
    allow_changes: Annotated[
        bool, Option(help="Resume with a changed recipe or text.")
    ] = False,
    restart: Annotated[
        bool, Option(help="Delete the existing run and start over.")
    ] = False,
    deterministic: Annotated[
        bool, Option(help="Make training on a GPU reproducible.")
    ] = False,
    allow_unsafe: options.AllowUnsafe = False,
    worker_timeout: Annotated[
        float, Option(min=1, help="Seconds until a silent worker counts as lost.")
    ] = 30.0,
    dry_run: Annotated[
        bool, Option(help="Print sizes, memory and time; write nothing.")
    ] = False,
):
    """Train a model or resume an interrupted run.

    --from copies weights, vocabulary and architecture, but not the optimizer state.
    --dry-run measures the speed with a few steps, which takes up to a minute.

    \b
    keras-transformer train phrases --output runs/phrases
    keras-transformer train files --output runs/mine \\
      --set data.train.source=train.en --set data.train.target=train.de
    keras-transformer train files --from runs/mine --output runs/finer \\
      --set data.train.source=new.en --set data.train.target=new.de
    """
    if recipe is None:
        given = (output, initial_model, *overrides)
        if any(given) or restart or allow_changes or dry_run:
            raise UserError("pass RECIPE, the name of a packaged recipe or a YAML file")
        descriptions = kt.recipes.packaged_recipes()
        width = max(map(len, descriptions))
        for name, description in descriptions.items():
            typer.echo(f"{name:{width}}  {description}")
        return
    if output is None and not dry_run:
        raise UserError("pass the run folder as --output RUN")
    if output is not None:
        console.require_folder_path(output)
    if deterministic:
        overrides = [*overrides, "training.deterministic=true"]
    keys = {}
    if initial_model is not None:
        found = console.find_model(initial_model)
        if allow_unsafe:
            console.warn_unsafe(found)
            console.load_tensorflow()
        keys = kt.saving.load.recipe_keys(found, allow_unsafe)
        weights = found.weights or "its newest checkpoint"
        console.print_status(f"--from {initial_model}: using the weights of {weights}")
    loaded = load_adapted_recipe(recipe, overrides, keys, None if restart else output)
    if dry_run:
        for key, value in kt.runs.plan.plan_training(loaded).items():
            typer.echo(f"{key}: {value}")
        return
    _warn_of_recipe(loaded)
    given = loaded.training.initial_path
    if allow_unsafe and given and initial_model is None:
        console.warn_unsafe(given)
    with console.resume_hint("resume", output):
        summary = kt.train(
            loaded,
            output,
            allow_changes=allow_changes,
            restart=restart,
            worker_timeout=worker_timeout,
            allow_unsafe=allow_unsafe,
            progress=not console.settings.quiet,
        )
    for key, value in summary.items():
        shown = f"{value:.4g}" if isinstance(value, float) else value
        typer.echo(f"{key}: {shown}")
    if summary:  # It is empty on all workers but the first.
        for line in ("next:", *_next_commands(loaded, output)):
            console.print_status(line)


def _warn_of_recipe(recipe):
    """Warns of too little memory, and of warm-ups that are longer than their stage."""
    from keras_transformer.machine import (
        find_machine,
        format_bytes,
        free_memory,
        recipe_memory,
    )

    gpus = find_machine().gpus
    needed = recipe_memory(recipe, max(1, len(gpus)))
    available = gpus[0].memory if gpus else free_memory()
    if available is not None and needed > available:
        limit = format_bytes(available)
        limit = f"the GPU has only {limit}" if gpus else f"only {limit} is free"
        console.warn(
            f"training takes about {format_bytes(needed)} of memory, but {limit}. "
            "Increase training.gradient_accumulation_steps or reduce "
            "training.batch_tokens"
        )
    for number, stage in enumerate(recipe.stages, 1):
        steps, warmup_steps = stage.settings.steps, stage.settings.warmup_steps
        if warmup_steps > steps:
            stage_name = f".stages: stage {number}" if recipe.training.stages else ""
            console.warn(
                f"training{stage_name}: warmup_steps={warmup_steps} exceeds "
                f"steps={steps}, so the learning rate will not reach its peak"
            )


def _next_commands(recipe, run):
    """Returns commands to run next, with the run's path and the recipe's test set.

    Without a test set, the names of its files are examples: scores on the validation
    text, which has selected best.keras, would be too high.
    """
    data = recipe.data
    folder = shlex.quote(str(run))
    test = getattr(data, "test", None)
    sample = test or getattr(data, "validation", None)
    files = None

    def path(given):
        path, here = pathlib.Path(given[0]), pathlib.Path.cwd()
        if not test:
            path = "test" + "".join(path.suffixes)
        elif here in path.parents:
            path = path.relative_to(here)
        return shlex.quote(str(path))

    if data.kind == "trees":
        commands = [f'echo "The dog barks ." | keras-transformer parse {folder}']
        files = sample and f"--metric f1 --reference {path(sample.trees)}"
    else:
        commands = [
            f'echo "TEXT" | keras-transformer translate {folder}',
            console.export_command(run, run),
        ]
        if data.kind in ("files", "records") and sample:
            source, target = path(sample.source), path(sample.target)
            files = f"--source {source} --reference {target}"
    if files:
        commands.insert(0, f"keras-transformer evaluate {folder} {files}")
    return [f"  {command}" for command in commands]


def load_adapted_recipe(*arguments):
    """Checks a recipe and its text, loads TensorFlow, and adapts it to the machine.

    `arguments` are those of `load_recipe`. The chosen settings are printed.
    """
    from keras_transformer.machine import find_machine

    chosen = []  # a line per setting
    recipe = kt.recipes.load_recipe(*arguments, report=chosen.append)
    kt.recipes.automatic.check_files(recipe.data)
    console.load_tensorflow()
    # The values of keys that are `auto` depend on the GPUs, which are found only after
    # TensorFlow has loaded.
    if chosen and find_machine().gpus:
        chosen.clear()
        recipe = kt.recipes.load_recipe(*arguments, report=chosen.append)
    for line in chosen:
        console.print_status(line)
    return recipe


def init(
    path: Annotated[
        pathlib.Path, Argument(metavar="FILE", help="Recipe to write.")
    ] = pathlib.Path("recipe.yaml"),
    recipe: Annotated[
        str,
        Option(
            metavar="NAME",
            autocompletion=options.complete_recipe_names,
            help="Name of the packaged recipe to copy.",
        ),
    ] = "files",
    source: options.Source = None,
    target: options.Target = None,
    force: Annotated[bool, Option(help="Overwrite the file if it exists.")] = False,
):
    """Write a commented recipe to edit.

    \b
    keras-transformer init my.yaml --source train.en --target train.de
    keras-transformer train my.yaml --output runs/mine
    """
    console.require_parent(path)
    if path.suffix not in (".yaml", ".yml"):
        raise UserError(f"{path}: the name of a recipe must end in .yaml or .yml")
    if path.is_dir():
        raise UserError(f"{path}: is a folder. Choose another name")
    if path.exists() and not force:
        raise UserError(f"{path}: already exists. Choose another name, or pass --force")
    if (source is None) != (target is None):
        raise UserError("--source and --target: pass both or neither")
    train = None if source is None else {"source": str(source), "target": str(target)}
    replace_text(path, kt.recipes.recipe_template(recipe, path, train))
    typer.echo(path)
    lacks_text = recipe == "files" and train is None
    begin = "edit data.train, then" if lacks_text else "next"
    recipe_path = shlex.quote(str(path))
    console.print_status(
        f"{begin}: keras-transformer train {recipe_path} --output runs/mine"
    )


def demo(
    output: Annotated[
        pathlib.Path, Option("--output", "-o", metavar="RUN", help="Run folder.")
    ] = pathlib.Path("runs/demo"),
    saved_model: Annotated[
        pathlib.Path,
        Option("--export", metavar="FOLDER", help="Folder for the SavedModel."),
    ] = pathlib.Path("saved_models/demo"),
    overrides: options.Overrides = (),
):
    """Train, evaluate and export a model in a few minutes.

    The data are phrases from Unicode's CLDR in two languages, which the package Babel
    includes: dates, times, numbers, amounts of money, measurements and names.

    \b
    keras-transformer demo
    keras-transformer demo --set data.target_locale=fr --output runs/demo_fr \\
      --export saved_models/demo_fr
    """
    console.refuse_workers("demo")
    for folder in (output, saved_model):
        console.require_folder_path(folder)
    recipe = kt.recipes.load_recipe("phrases", overrides)
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
    with console.resume_hint("resume"):
        kt.train(recipe, output, progress=not console.settings.quiet)

    sources, references = kt.runs.corpora.load_scored_pairs(recipe, "test")
    begin_stage(2, f"translating {len(sources)} held-out phrases")
    translator = console.open_translator(output)
    hypotheses = translator.translate(sources)
    # The vocabulary has one kind of space, and CLDR has several.
    pairs = zip(hypotheses, references, strict=True)
    exact = 100 * sum(one.split() == other.split() for one, other in pairs)
    exact /= len(sources)
    bleu = kt.evaluation.bleu(hypotheses, references)

    begin_stage(3, "exporting")
    exported = kt.export.export_translator(translator, saved_model)
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
