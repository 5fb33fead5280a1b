"""Measures the time until the first translation.

    python benchmarks/startup.py RUN_OR_SAVED_MODEL

The script times `keras-transformer --help` and `translate` with one line, each in a new
process. Then it times the stages of a translation in Python. It writes
benchmarks/results/startup.json and .md.
"""

import argparse
import ast
import os
import statistics
import subprocess
import sys
import time

import machine
import report

REPEATS = 5
# The process prints the time at the end of each stage.
STAGES = """
import json, time
marks = [("interpreter", time.time())]
import tensorflow
marks.append(("importing TensorFlow", time.time()))
import keras, tensorflow_text
marks.append(("importing Keras and tensorflow-text", time.time()))
from keras_transformer.opening import open_model
model = open_model(MODEL)
marks.append(("loading the model", time.time()))
model.translate(["A man rides a bike."])
marks.append(("first line, compiling the search", time.time()))
model.translate(["A dog runs on the beach."])
marks.append(("second line", time.time()))
print(json.dumps(marks))
"""


def seconds(command, text=""):
    start = time.perf_counter()
    subprocess.run(command, input=text, text=True, capture_output=True, check=True)
    return time.perf_counter() - start


def stages(model):
    """Returns the seconds of each stage of one process."""
    code = STAGES.replace("MODEL", repr(os.path.abspath(model)))
    start = time.time()
    found = subprocess.run(
        [sys.executable, "-c", code], text=True, capture_output=True, check=True
    )
    marks = ast.literal_eval(found.stdout.splitlines()[-1])
    times = [start, *(mark for _, mark in marks)]
    return {
        name: end - begin
        for (name, _), begin, end in zip(marks, times, times[1:], strict=False)
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--output", default=str(report.RESULTS))
    arguments = parser.parse_args()
    command = [sys.executable, "-c", "from keras_transformer.cli import main; main()"]
    medians = {}
    for name, words, text in (
        ("keras-transformer --help", ["--help"], ""),
        (
            "keras-transformer translate, one line",
            ["translate", arguments.model],
            "A man rides a bike.\n",
        ),
    ):
        seconds([*command, *words], text)
        medians[name] = statistics.median(
            seconds([*command, *words], text) for _ in range(REPEATS)
        )
    rounds = [stages(arguments.model) for _ in range(REPEATS)]
    for name in rounds[0]:
        medians[f"stage: {name}"] = statistics.median(each[name] for each in rounds)
    result = {
        "machine": machine.description(),
        "versions": report.versions(),
        "seconds": medians,
    }
    report.write(arguments.output, "startup", result)


if __name__ == "__main__":
    main()
