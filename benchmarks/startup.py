"""What a user waits for before the first answer.

    python benchmarks/startup.py RUN_OR_SAVED_MODEL

times `keras-transformer --help` and `translate` of one line, each as a fresh process,
and where the time of the latter goes. Writes benchmarks/results/startup.json and .md.
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
# Each stage ends where the next begins; the process prints the seconds since its start.
STAGES = """
import json, time
marks = [("interpreter", time.time())]
import tensorflow
marks.append(("import of TensorFlow", time.time()))
import keras, tensorflow_text
marks.append(("import of Keras and tensorflow-text", time.time()))
from keras_transformer.saving.open import open_model
model = open_model(MODEL)
marks.append(("loading of the model", time.time()))
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
    """Seconds by stage of one process."""
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
    figures = {}
    for name, words, text in (
        ("keras-transformer --help", ["--help"], ""),
        (
            "keras-transformer translate, one line",
            ["translate", arguments.model],
            "A man rides a bike.\n",
        ),
    ):
        seconds([*command, *words], text)
        figures[name] = statistics.median(
            seconds([*command, *words], text) for _ in range(REPEATS)
        )
    rounds = [stages(arguments.model) for _ in range(REPEATS)]
    for name in rounds[0]:
        figures[f"of it: {name}"] = statistics.median(each[name] for each in rounds)
    table = report.table(
        ["what", "seconds"], [[name, f"{value:.2f}"] for name, value in figures.items()]
    )
    result = {
        "machine": machine.description(),
        "versions": report.versions(),
        "seconds": figures,
    }
    report.write(arguments.output, "startup", result, table)


if __name__ == "__main__":
    main()
