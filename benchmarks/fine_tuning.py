"""Fine-tunes an imported model on other text, with and without an interruption.

    KERAS_TRANSFORMER_DATA=... python benchmarks/fine_tuning.py MODEL

MODEL is a folder that `keras-transformer import` wrote. The script trains it for 200
steps on sentences of Tatoeba and measures perplexity on Tatoeba's development set
before and after. A second run stops after 100 steps and resumes, and the script
compares the weights of both runs. It writes benchmarks/results/fine_tuning.json and
.md.
"""

import argparse
import pathlib
import tempfile

import machine
import numpy as np
import report
import workload

STEPS = 200
# Every 16th pair of the training text is used.
STRIDE = 16
SETTINGS = (
    "training.learning_rate=0.0005",
    "training.warmup_steps=20",
    f"training.checkpoint_steps={STEPS // 2}",
    "training.average_checkpoints=1",
    "training.mixed_precision=null",
    "training.validation_steps=200",
    "training.batch_tokens=1024",
)


def read_pairs(name):
    """Returns the sources and targets of a split of Tatoeba."""
    from keras_transformer.pipelines.lines import read_lines

    folder = workload.data_folder("tatoeba_en_de")
    return [list(read_lines(folder / f"{name}.{side}.gz")) for side in ("en", "de")]


def build_recipe(model, folder, steps):
    """Returns a recipe that starts from `model` and trains on the text in `folder`."""
    from keras_transformer.recipes import load_recipe
    from keras_transformer.saving.load import recipe_keys

    settings = [
        *(f"data.train.{side}={folder / side}" for side in ("source", "target")),
        *SETTINGS,
        f"training.steps={steps}",
    ]
    return load_recipe("files", settings, recipe_keys(model))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--output", default=str(report.RESULTS))
    arguments = parser.parse_args()
    import keras_transformer as kt
    from keras_transformer.evaluation.perplexity import compute_perplexity
    from keras_transformer.runs.train import train

    dev = read_pairs("dev")
    result = {"pairs": len(dev[0]), "steps": STEPS}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for side, lines in zip(("source", "target"), read_pairs("train"), strict=True):
            text = "".join(f"{line}\n" for line in lines[::STRIDE])
            (folder / side).write_text(text, encoding="utf-8")
            result["training_pairs"] = len(lines[::STRIDE])
        runs = {"uninterrupted": (STEPS,), "resumed": (STEPS // 2, STEPS)}
        for run, stops in runs.items():
            for steps in stops:
                recipe = build_recipe(arguments.model, folder, steps)
                train(recipe, folder / run, progress=False)
        before, after, resumed = (
            kt.open_model(path)
            for path in (arguments.model, *(folder / run for run in runs))
        )
        result["perplexity"] = [
            compute_perplexity(each.score(*dev)) for each in (before, after)
        ]
        weights = zip(
            *(each.model.get_weights() for each in (after, resumed)), strict=True
        )
        result["resumed_is_identical"] = all(
            np.array_equal(left, right) for left, right in weights
        )
        # Marian decodes from a zero vector, which training must not change.
        start = np.array([[after.tokenizer.start_id]])
        vector = np.asarray(after.model.token_embedding(start))
        result["start_is_zero"] = not vector.any()
    result |= {"machine": machine.description(), "versions": report.versions()}
    report.write(arguments.output, "fine_tuning", result)


if __name__ == "__main__":
    main()
