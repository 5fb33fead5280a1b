"""Trains a recipe on its training text and on translations of each side.

    python benchmarks/data_diversification.py multi30k_en_de --seeds 1,2,3 \\
      --output runs/diversified

The method is one round of data diversification (Nguyen et al., NeurIPS 2020). For each
seed, the script trains a forward model from source to target, which translates the
training sources, and a backward model, which translates the training targets. The final
model trains on the original pairs and all synthetic ones, without duplicates. Options:

- `--forward-only` trains no backward models.
- `--ensemble` also translates with the models of each direction as an ensemble.
- `--final-seeds` trains the final model once per seed. `repeat` then scores the models
  on the test set.
- `--set-final` changes the final training run. With the value
  `training.initial_model=OUTPUT/forward-{seed}`, the run continues the forward models.

The script runs these steps, some of which are commands of the package. All paths are in
the OUTPUT folder:

1. The script writes the recipe's text to `text/`, and the recipes `forward.yaml`,
   `backward.yaml` and `diversified.yaml`.
2. `train` writes `forward-SEED/` and `backward-SEED/`.
3. `translate` writes `synthetic/forward-SEED`, `synthetic/backward-SEED` and, for the
   ensembles, `synthetic/forward-ensemble` and `synthetic/backward-ensemble`.
4. The script merges all pairs into `text/diversified.source` and `.target`. Line i of
   `text/diversified.origin` names the origin of pair i.
5. `train`, or `repeat` with `--final-seeds`, writes `diversified/`.

Run the same command again to resume: finished steps are skipped. `--dry-run` prints the
commands and writes nothing. Choose settings by the validation score. Without
`--final-seeds`, score the test set once, with the command that the script prints.
"""

import argparse
import pathlib
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

from diversification_plan import DIRECTIONS, Plan, check, claim, read_plan
from diversified_text import diversified_pairs, one_line, read_lines, write

from keras_transformer.errors import UserError
from keras_transformer.recipes import dump_recipe, load_recipe
from keras_transformer.recipes.schema import Recipe
from keras_transformer.saving.names import MODEL, REPORT, read_final_scores

SIDES = ("source", "target")
INTERRUPTED = 128 + signal.SIGINT  # exit code after Ctrl-C, as in a shell


def run(command):
    """Runs a command of the package; its output goes to this terminal.

    The terminal sends Ctrl-C to the command, too. The function waits until the command
    has saved its state and ended.

    Raises:
        KeyboardInterrupt: If this process or the command was interrupted.
        UserError: If the command fails.
    """
    process = subprocess.Popen([sys.executable, "-m", "keras_transformer", *command])
    is_interrupted = False
    while process.returncode is None:
        try:
            process.wait()
        except KeyboardInterrupt:
            is_interrupted = True
    if is_interrupted or process.returncode == INTERRUPTED:
        raise KeyboardInterrupt
    if process.returncode:
        name = shlex.join(["keras-transformer", *command])
        raise UserError(f"exit code {process.returncode}: {name}")


def diversify(plan, output, dry_run=False):
    """Runs all steps that are not finished.

    Args:
        plan: `Plan`.
        output: Folder to write all files to.
        dry_run: Whether to print the commands only.

    Raises:
        RecipeError: If the recipe does not fit, or `output` contains the results of
            another plan.
        UserError: If a command fails.
    """
    check(plan)
    if not dry_run:
        claim(plan, output)
    for part in parts_of(plan, output):
        if dry_run:
            print(f"# finished: {part}" if part.is_finished() else part)
        elif part.is_finished():
            print(f"{part.result}: finished", file=sys.stderr)
        elif part.function is not None:
            print(part, file=sys.stderr)
            part.function()
        else:
            run(part.command)


class Part(NamedTuple):
    """One step of the script: a command of the package, or a function of this script.

    Attributes:
        result: File that exists once the step is finished.
        command: Words of the command, without `keras-transformer`.
        function: Function without arguments, or `None`.
        has_scores: Whether `result` is the model of a run with final validation scores.
    """

    result: pathlib.Path
    command: tuple = ()
    function: Callable | None = None
    has_scores: bool = False

    def is_finished(self):
        # `train` writes the model before it computes the final validation scores.
        return self.result.exists() and (
            not self.has_scores or read_final_scores(self.result.parent) is not None
        )

    def __str__(self):
        if self.function is not None:
            return f"# this script writes {self.result}"
        return shlex.join(["keras-transformer", *self.command])


def parts_of(plan, output):
    """Returns every `Part` in order. `diversify` documents the arguments."""
    text = output / "text"
    has_scores = getattr(plan.recipe.data, "validation", True) is not None

    def train(direction, seed):
        folder = output / f"{direction}-{seed}"
        options = ["--set", f"training.seed={seed}"]
        command = ["train", output / f"{direction}.yaml", "--output", folder, *options]
        return Part(folder / MODEL, (*map(str, command),), has_scores=has_scores)

    def translate(direction, name):
        models = [output / f"{direction}-{seed}" for seed in plan.seeds]
        result = output / "synthetic" / name
        if not name.endswith("ensemble"):
            models = [output / name]
        command = ["translate", models[0], "--output", result, "--resume"]
        command += [word for model in models[1:] for word in ("--ensemble", model)]
        command += ["--input", text / f"train.{DIRECTIONS[direction]}"]
        if plan.recipe.training.parallel_parts > 1:
            command += ["--parallel-parts", plan.recipe.training.parallel_parts]
        return Part(result, (*map(str, command),))

    command = ["train", output / "diversified.yaml", "--output", output / "diversified"]
    folder = output / "diversified"
    final = Part(folder / MODEL, (*map(str, command),), has_scores=has_scores)
    if plan.final_seeds:
        seeds = ",".join(map(str, plan.final_seeds))
        command = ("repeat", *final.command[1:], "--seeds", seeds)
        final = Part(folder / REPORT, command)
    return [
        Part(output / "diversified.yaml", function=lambda: write_text(plan, output)),
        *(train(name, seed) for seed in plan.seeds for name in plan.directions),
        *(
            translate(direction, name)
            for direction, names in plan.translations().items()
            for name in names
        ),
        Part(text / "diversified.origin", function=lambda: merge(plan, output)),
        final,
    ]


def write_text(plan, output):
    """Writes the text of each split and the recipes of the three kinds of models."""
    # `corpora` imports TensorFlow, which takes seconds and which --help does not need.
    from keras_transformer.runs.corpora import load_pairs

    splits = {}
    for name, pairs in load_pairs(plan.recipe.data).items():
        kept = [pair for pair in pairs if all(pair)]
        splits[name] = {
            side: str((output / "text" / f"{name}.{side}").resolve()) for side in SIDES
        }
        texts = zip(*kept, strict=True)
        for path, lines in zip(splits[name].values(), texts, strict=True):
            write(path, "".join(f"{one_line(each)}\n" for each in lines))

    def dump(name, changed, splits):
        data = {**splits, "kind": "files"}
        data["max_length"] = plan.recipe.data.max_length
        values = {**changed.model_dump(), "data": data}
        dump_recipe(Recipe.model_validate(values), output / f"{name}.yaml")

    dump("forward", plan.recipe, splits)
    swapped = {
        name: {"source": split["target"], "target": split["source"]}
        for name, split in splits.items()
    }
    dump("backward", plan.recipe, swapped)
    text = (output / "text").resolve()
    merged = {side: str(text / f"diversified.{side}") for side in SIDES}
    # Written last, because its existence shows that all files are complete.
    dump("diversified", plan.final, {**splits, "train": merged})


def merge(plan, output):
    """Writes the original and all synthetic pairs, without duplicates."""
    pairs = diversified_pairs(
        *(read_lines(output / "text" / f"train.{side}") for side in SIDES),
        **{
            direction: {name: read_lines(output / "synthetic" / name) for name in names}
            for direction, names in plan.translations().items()
        },
    )
    counts = {}
    for origin in pairs.values():
        counts[origin] = counts.get(origin, 0) + 1
    for name, number in counts.items():
        print(f"{number:,} pairs of {name}", file=sys.stderr)
    columns = zip(*((*pair, origin) for pair, origin in pairs.items()), strict=True)
    for name, column in zip((*SIDES, "origin"), columns, strict=True):
        text = "".join(f"{line}\n" for line in column)
        write(output / "text" / f"diversified.{name}", text)


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", help="packaged recipe or YAML file")
    parser.add_argument(
        "--output", type=pathlib.Path, required=True, help="folder for all files"
    )
    parser.add_argument(
        "--seeds",
        default="1",
        help="seeds of the forward and backward models, separated by commas "
        "(default: 1)",
    )
    parser.add_argument(
        "--forward-only", action="store_true", help="train no backward models"
    )
    parser.add_argument(
        "--ensemble",
        action="store_true",
        help="also translate with the models of each direction as an ensemble",
    )
    parser.add_argument(
        "--final-seeds",
        help="seeds of the final model, separated by commas (default: train it once, "
        "with the recipe's seed)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="setting of all training runs, such as training.steps=9000",
    )
    parser.add_argument(
        "--set-final",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="setting of the final training run only, such as training.steps=30000",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the commands and write nothing"
    )
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse_arguments(arguments)
    # Imported after the options, so that --help is fast. `load_recipe` finds GPUs, to
    # which the values of `auto` keys adapt, only if TensorFlow has been imported.
    import tensorflow  # noqa: F401

    try:
        # Values of keys that are `auto` are kept, also on a machine with other cores.
        stored = read_plan(options.output)
        recipe, final = (stored.recipe, stored.final) if stored else (None, None)
        final_settings = [*options.set, *options.set_final]
        plan = Plan(
            load_recipe(options.recipe, options.set, stored=recipe),
            load_recipe(options.recipe, final_settings, stored=final),
            parse_seeds(options.seeds),
            parse_seeds(options.final_seeds) if options.final_seeds else (),
            ("forward",) if options.forward_only else tuple(DIRECTIONS),
            options.ensemble,
        )
        diversify(plan, options.output, options.dry_run)
    except (UserError, ValueError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted; run the same command again to resume", file=sys.stderr)
        sys.exit(INTERRUPTED)
    if plan.final_seeds:
        return
    text = options.output / "text"
    if not (text / "test.source").exists():
        return
    command = ["keras-transformer", "evaluate", options.output / "diversified"]
    command += ["--source", text / "test.source", "--reference", text / "test.target"]
    print(f"# to score the test set, once: {shlex.join(map(str, command))}")


def parse_seeds(text):
    """Returns the seeds of an option.

    Raises:
        ValueError: If a seed is not an int, or is repeated.
    """
    seeds = [int(each) for each in text.split(",")]
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be distinct. Received: {text}")
    return seeds


if __name__ == "__main__":
    main()
