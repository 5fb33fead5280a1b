"""The input pipeline alone: rate, padding, and memory on a corpus of millions.

    KERAS_TRANSFORMER_DATA=... python benchmarks/pipeline.py
    KERAS_TRANSFORMER_DATA=... python benchmarks/pipeline.py --pairs 5000000

Without `--pairs` it reads Multi30k; with it, as many random pairs of Multi30k's words,
and the memory on the way. Writes benchmarks/results/pipeline*.json and .md.
"""

import argparse
import itertools
import json
import pathlib
import tempfile
import time

import machine
import numpy as np
import psutil
import report
import turns
import workload

EPOCHS = 3


def own_mib():
    """Resident memory without pages of files, which the system takes back at will."""
    memory = psutil.Process().memory_info()
    return (memory.rss - memory.shared) / 2**20


def rates(dataset, batches):
    """Target tokens a second over `batches` batches, the share of padding, seconds."""
    real = padded = target = 0
    start = time.perf_counter()
    for inputs, labels in dataset.take(batches):
        for ids in (inputs["source_ids"].numpy(), labels.numpy()):
            count = int(np.count_nonzero(ids))
            real, padded = real + count, padded + ids.size
        target += count
    seconds = time.perf_counter() - start
    return {
        "rate": target / seconds,
        "padding": 1 - real / padded,
        "seconds": seconds,
    }


def of_multi30k(arguments, folder):
    from keras_transformer import pipelines

    corpus = workload.corpus(folder)
    batches = pipelines.steps_per_epoch(corpus, workload.BATCH_TOKENS)
    dataset = workload.dataset(folder)
    rates(dataset, 20)
    found = [rates(dataset, batches) for _ in range(EPOCHS)]
    rate = turns.summary([each["rate"] for each in found])
    rows = [
        ["target tokens/s", report.spread(rate)],
        ["padding", f"{found[0]['padding']:.1%}"],
    ]
    training = pathlib.Path(arguments.output) / "training_tiny.json"
    if training.is_file():
        eats = json.loads(training.read_text())["contestants"][0]
        eats = eats["tokens_per_second"]["median"]
        rows.append(["times what the tiny model eats", f"{rate['median'] / eats:.0f}"])
    result = {"rate": rate, "padding": found[0]["padding"], "batches": batches}
    return "pipeline", result, rows


def of_millions(arguments, folder):
    from keras_transformer import pipelines

    source = list(pipelines.TextFiles(*workload.text_files()))
    tokenizer = pipelines.load_tokenizer(folder / "tokenizer")
    rng = np.random.default_rng(1)
    memory = []

    def pairs():
        for number in itertools.count():
            if number % 500_000 == 0:
                memory.append((f"{number:,} pairs", round(own_mib())))
            if number == arguments.pairs:
                return
            one, other = source[rng.integers(len(source))]
            # No two alike, so that nothing is kept by being known.
            yield f"{one} {number}", f"{other} {number}"

    start = time.perf_counter()
    corpus = pipelines.encode_corpus(pairs(), tokenizer, tokenizer, folder / "millions")
    encoding = time.perf_counter() - start
    dataset = pipelines.training_dataset(corpus, workload.BATCH_TOKENS, seed=1)
    start = time.perf_counter()
    rates(dataset, 1)
    first = time.perf_counter() - start
    found = rates(dataset, 2000)
    memory.append(("2,000 batches", round(own_mib())))
    rows = [
        ["pairs", f"{arguments.pairs:,}"],
        ["pairs encoded a second", f"{arguments.pairs / encoding:,.0f}"],
        ["seconds to an epoch's first batch", f"{first:.1f}"],
        ["target tokens/s", f"{found['rate']:,.0f}"],
        ["padding", f"{found['padding']:.1%}"],
        *([f"MiB of memory after {place}", mib] for place, mib in memory),
    ]
    result = {"memory": memory, "encoding_seconds": encoding, "first_batch": first}
    return "pipeline_millions", {**result, **found}, rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--output", default=str(report.RESULTS))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        workload.corpus(folder)
        measure = of_millions if arguments.pairs else of_multi30k
        name, result, rows = measure(arguments, folder)
    result = {
        "machine": machine.description(),
        "versions": report.versions(),
        **result,
    }
    report.write(arguments.output, name, result, report.table(["what", "figure"], rows))


if __name__ == "__main__":
    main()
