"""Times beam search in the installed version of the package, 0.1 or later.

    python benchmarks/search_speed.py RUN SOURCE --output FILE

RUN is a run of version 0.1, which later versions also open, and SOURCE is a text file.
Run the script in a checkout of each version, one after another. It prints the seconds
for the whole text in batches, and for its first 100 lines one at a time. It writes the
translations of the whole text to FILE.
"""

import argparse
import json
import pathlib
import statistics
import time

import keras_transformer

REPEATS, SINGLE_LINES = 3, 100


def open_search(run, beam_size, patience):
    """Returns a function that translates a list of texts."""
    if not hasattr(keras_transformer, "BeamSearch"):  # version 0.1
        from keras_transformer.models import open_model

        model = open_model(run)
        options = {"beam_size": beam_size, "patience": patience}
        return lambda texts: [
            best.text for best, *_ in model.translate(texts, **options)
        ]
    opened = keras_transformer.open_model(run)
    return opened.with_search(beam_size=beam_size, patience=patience).translate


def measure(function):
    """Returns the median seconds of `REPEATS` calls, after a warm-up call."""
    function()
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run")
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("--beam-size", type=int, default=4)
    parser.add_argument("--patience", type=float)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    texts = arguments.source.read_text(encoding="utf-8").splitlines()
    translate = open_search(arguments.run, arguments.beam_size, arguments.patience)
    found = translate(texts)
    arguments.output.write_text("".join(f"{text}\n" for text in found), "utf-8")
    result = {
        "package": keras_transformer.__file__,
        "beam_size": arguments.beam_size,
        "patience": arguments.patience,
        "batches": measure(lambda: translate(texts)),
        "single": measure(lambda: [translate([x]) for x in texts[:SINGLE_LINES]]),
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
