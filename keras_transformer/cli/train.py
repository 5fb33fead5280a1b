"""keras-transformer train"""

import pathlib
import shlex
from typing import Annotated

import typer
from typer import Argument, Option

import keras_transformer
from keras_transformer.cli import common, console, options
from keras_transformer.cli.recipes import AdaptiveRecipe
from keras_transformer.errors import UserError


def train(
    recipe: Annotated[
        str | None,
        Argument(
            metavar="RECIPE",
            autocompletion=options.complete_recipe_names,
            help="Name of a shipped recipe, or a YAML file. Without it, the command "
            "lists the recipes.",
        ),
    ] = None,
    output: Annotated[
        pathlib.Path | None, Option("--output", "-o", metavar="RUN", help="Run folder.")
    ] = None,
    overrides: options.Overrides = (),
    initial_model: Annotated[
        pathlib.Path | None,
        Option(
            "--from",
            metavar="MODEL",
            help="Model to fine-tune: run folder, .keras file, preset folder, name of "
            "a packaged model, or hf://OWNER/NAME.",
        ),
    ] = None,
    allow_changes: Annotated[
        bool, Option("--allow-changes", help="Resume with a changed recipe or text.")
    ] = False,
    restart: Annotated[
        bool, Option("--restart", help="Delete the existing run and start over.")
    ] = False,
    deterministic: Annotated[
        bool, Option("--deterministic", help="Make training on a GPU reproducible.")
    ] = False,
    allow_unsafe: options.AllowUnsafe = False,
    worker_timeout: Annotated[
        float, Option(min=1, help="Seconds until a silent worker counts as lost.")
    ] = 30.0,
    dry_run: Annotated[
        bool,
        Option("--dry-run", help="Print sizes, memory and time; write nothing."),
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
    from keras_transformer.recipes import shipped_recipes

    if recipe is None:
        given = (output, initial_model, *overrides)
        if any(given) or restart or allow_changes or dry_run:
            raise UserError("give the name or the file of a RECIPE")
        descriptions = shipped_recipes()
        width = max(map(len, descriptions))
        for name, description in descriptions.items():
            typer.echo(f"{name:{width}}  {description}")
        return
    if deterministic:
        overrides = [*overrides, "training.deterministic=true"]
    keys = {}
    if initial_model is not None:
        from keras_transformer.saving.load import recipe_keys

        found = console.find_model(initial_model)
        if allow_unsafe:
            console.warn_unsafe(found)
            console.load_tensorflow()
        keys = recipe_keys(found, allow_unsafe)
        weights = found.weights or "its newest checkpoint"
        console.print_status(f"--from {initial_model}: using the weights of {weights}")
    run = None if restart else output
    adaptive = AdaptiveRecipe(recipe, overrides, keys, run)
    if output is None and not dry_run:
        raise UserError("give the run's folder with --output RUN")
    if output is not None:
        console.require_folder_path(output)

    loaded = adaptive.adapt()
    if dry_run:
        from keras_transformer.runs.plan import plan_training

        for key, value in plan_training(loaded).items():
            typer.echo(f"{key}: {value}")
        return
    _warn_of_recipe(loaded)
    given = loaded.training.initial_path
    if allow_unsafe and given and initial_model is None:
        console.warn_unsafe(given)
    with console.resume_hint(f"resume the run in {output}"):
        summary = keras_transformer.train(
            loaded,
            output,
            allow_changes=allow_changes,
            restart=restart,
            worker_timeout=worker_timeout,
            allow_unsafe=allow_unsafe,
            progress=not common.current.quiet,
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
    """Returns commands to run next, with the run's path and the recipe's files."""
    data = recipe.data
    folder, name = (
        shlex.quote(str(run)),
        shlex.quote(f"saved_models/{run.resolve().name}"),
    )
    sample = getattr(data, "test", None) or getattr(data, "validation", None)
    files = None
    if data.kind == "trees":
        commands = [f'echo "The dog barks ." | keras-transformer parse {folder}']
        files = sample and f"--metric f1 --reference {_shell_path(sample.trees[0])}"
    else:
        commands = [
            f'echo "TEXT" | keras-transformer translate {folder}',
            f"keras-transformer export {folder} {name}",
        ]
        if data.kind in ("files", "records") and sample:
            source, target = sample.source[0], sample.target[0]
            files = f"--source {_shell_path(source)} --reference {_shell_path(target)}"
    if files:
        commands.insert(0, f"keras-transformer evaluate {folder} {files}")
    return [f"  {command}" for command in commands]


def _shell_path(path):
    """Returns a path for a shell, relative if it is inside the current folder."""
    path, here = pathlib.Path(path), pathlib.Path.cwd()
    return shlex.quote(str(path.relative_to(here) if here in path.parents else path))
