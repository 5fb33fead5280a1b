"""Trains a recipe on its training text and on translations of both its sides.

    python benchmarks/data_diversification.py multi30k_en_de --seeds 1,2,3 \\
      --output runs/diversified

The method is one round of data diversification (Nguyen et al., NeurIPS 2020). With each
seed, it trains a forward model from source to target, which translates the training
sources, and a backward model, which translates the training targets. The last model
trains on the original pairs and all synthetic ones, without duplicates.

The script runs these steps, some of which are commands of the package. All paths are in
the OUTPUT folder:

1. The script writes the recipe's text to `text/`, and the recipes `forward.yaml`,
   `backward.yaml` and `diversified.yaml`.
2. `train` writes `forward-SEED/` and `backward-SEED/`.
3. `translate` writes `synthetic/forward-SEED` and `synthetic/backward-SEED`.
4. The script merges the pairs in `text/diversified.source` and `.target`. Line i of
   `text/diversified.origin` names the origin of pair i.
5. `train` writes `diversified/`.

Run the same command again to resume: finished steps are skipped. `--dry-run` prints the
commands and writes nothing. Choose settings by the validation score of `diversified/`,
and score the test set once, with the command that the script prints at the end.
"""

import argparse
import json
import pathlib
import shlex
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

from keras_transformer.errors import RecipeError
from keras_transformer.errors import UserError
from keras_transformer.files import replace_file
from keras_transformer.recipes import dump_recipe
from keras_transformer.recipes import load_recipe
from keras_transformer.recipes.schema import Recipe
from keras_transformer.saving.names import MODEL

SIDES = ("source", "target")
ORIGINAL = "original"


def run(command):
    """Runs a command of the package; its output goes to this terminal."""
    done = subprocess.run([sys.executable, "-m", "keras_transformer", *command])
    if done.returncode:
        name = shlex.join(["keras-transformer", *command])
        raise UserError(f"exit code {done.returncode}: {name}")


def diversify(recipe, seeds, output, final=None, dry_run=False):
    """Runs all steps that are not finished.

    Args:
        recipe: `Recipe` whose data are pairs of plain text.
        seeds: List of distinct ints. One model per direction is trained with each.
        output: Folder to write all files to.
        final: `Recipe` of the last training run. If `None`, `recipe` is used.
        dry_run: Whether to print the commands only.

    Raises:
        RecipeError: If the data are not pairs of plain text, or `output` contains
            another recipe or other seeds.
        UserError: If a command fails.
    """
    if recipe.data.kind in ("trees", "records", "none"):
        raise RecipeError(
            "data.kind must name a corpus of plain text pairs. Received: "
            f"{recipe.data.kind}."
        )
    final = recipe if final is None else final
    if not dry_run:
        claim(recipe, final, seeds, output)
    for part in parts_of(recipe, final, seeds, output):
        if dry_run:
            print(f"# finished: {part}" if part.result.exists() else part)
        elif part.result.exists():
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
    """

    result: pathlib.Path
    command: tuple = ()
    function: Callable | None = None

    def __str__(self):
        if self.function is not None:
            return f"# this script writes {self.result}"
        return shlex.join(["keras-transformer", *self.command])


def parts_of(recipe, final, seeds, output):
    """Returns every `Part` in order. `diversify` documents the arguments."""
    text, synthetic = output / "text", output / "synthetic"
    models = [
        (name, side, seed)
        for seed in seeds
        for name, side in (("forward", "source"), ("backward", "target"))
    ]

    def train(name, folder, *options):
        command = ["train", output / f"{name}.yaml", "--output", folder, *options]
        return Part(folder / MODEL, (*map(str, command),))

    def translate(name, side, seed):
        result = synthetic / f"{name}-{seed}"
        command = ["translate", output / result.name, "--output", result, "--resume"]
        command += ["--input", text / f"train.{side}"]
        if recipe.training.parallel_parts > 1:
            command += ["--parallel-parts", recipe.training.parallel_parts]
        return Part(result, (*map(str, command),))

    return [
        Part(
            output / "diversified.yaml",
            function=lambda: write_text(recipe, final, output),
        ),
        *(
            train(name, output / f"{name}-{seed}", "--set", f"training.seed={seed}")
            for name, _, seed in models
        ),
        *(translate(*model) for model in models),
        Part(text / "diversified.origin", function=lambda: merge(seeds, output)),
        train("diversified", output / "diversified"),
    ]


def claim(recipe, final, seeds, output):
    """Stores the settings in `output`, or checks that they match the stored ones."""
    path = output / "settings.json"
    recipes = [each.model_dump(mode="json") for each in (recipe, final)]
    settings = json.dumps({"seeds": seeds, "recipes": recipes}, indent=1)
    if not path.exists():
        for folder in ("text", "synthetic"):
            (output / folder).mkdir(parents=True, exist_ok=True)
        write(path, settings)
    elif path.read_text(encoding="utf-8") != settings:
        raise RecipeError(
            f"{path} stores another recipe or other seeds. Choose another --output"
        )


def write_text(recipe, final, output):
    """Writes the text of each split and the recipes of the three kinds of models."""
    # `corpora` imports TensorFlow, which takes seconds.
    from keras_transformer.experiments.corpora import load_pairs

    splits = {}
    for name, pairs in load_pairs(recipe).items():
        kept = [pair for pair in pairs if all(pair)]
        splits[name] = {
            side: str((output / "text" / f"{name}.{side}").resolve()) for side in SIDES
        }
        texts = zip(*kept, strict=True)
        for path, lines in zip(splits[name].values(), texts, strict=True):
            write(path, "".join(f"{one_line(each)}\n" for each in lines))

    def dump(name, changed, splits):
        data = {**splits, "kind": "files", "max_length": recipe.data.max_length}
        values = {**changed.model_dump(), "data": data}
        dump_recipe(Recipe.model_validate(values), output / f"{name}.yaml")

    dump("forward", recipe, splits)
    swapped = {
        name: {"source": split["target"], "target": split["source"]}
        for name, split in splits.items()
    }
    dump("backward", recipe, swapped)
    text = (output / "text").resolve()
    merged = {side: str(text / f"diversified.{side}") for side in SIDES}
    # Written last, because its existence shows that all files are complete.
    dump("diversified", final, {**splits, "train": merged})


def merge(seeds, output):
    """Writes the original and all synthetic pairs, without duplicates."""
    pairs = diversified_pairs(
        *(read_lines(output / "text" / f"train.{side}") for side in SIDES),
        *(
            {
                f"{name}-{seed}": read_lines(output / "synthetic" / f"{name}-{seed}")
                for seed in seeds
            }
            for name in ("forward", "backward")
        ),
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


def diversified_pairs(sources, targets, forward, backward):
    """Returns the original and the synthetic pairs, without duplicates.

    Args:
        sources: List of the training sources.
        targets: List of the training targets.
        forward: Mapping of names to translations of `sources`, one list per model.
        backward: Mapping of names to translations of `targets`, one list per model.

    Returns:
        Mapping of (source, target) to the name of its first origin: "original", then
        the models in order. Synthetic pairs with an empty translation are omitted.

    Raises:
        UserError: If the number of translations differs from the number of texts.
    """
    found = {}
    origins = [(ORIGINAL, sources, targets)]
    origins += [(name, sources, texts) for name, texts in forward.items()]
    origins += [(name, texts, targets) for name, texts in backward.items()]
    for name, left, right in origins:
        if len(left) != len(right):
            raise UserError(
                f"{name}: must have one translation per line. Received: "
                f"{len(left)} sources, {len(right)} targets"
            )
        for pair in zip(left, right, strict=True):
            if all(pair):
                found.setdefault(pair, name)
    return found


def one_line(text):
    """Replaces line breaks with spaces, because they would misalign the two sides."""
    return " ".join(text.splitlines())


def read_lines(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def write(path, text):
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", help="shipped recipe or YAML file")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--seeds", default="1", help="seeds, separated by commas")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--set-final",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="setting of the last training run only, such as training.steps=30000",
    )
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse_arguments(arguments)
    try:
        seeds = [int(each) for each in options.seeds.split(",")]
        recipe = load_recipe(options.recipe, options.set)
        final = load_recipe(options.recipe, [*options.set, *options.set_final])
        diversify(recipe, seeds, options.output, final, options.dry_run)
    except (UserError, ValueError) as error:
        sys.exit(f"error: {error}")
    text = options.output / "text"
    command = ["keras-transformer", "evaluate", options.output / "diversified"]
    command += ["--source", text / "test.source", "--reference", text / "test.target"]
    print(f"# to score the test set, once: {shlex.join(map(str, command))}")


if __name__ == "__main__":
    main()
