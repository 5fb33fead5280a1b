"""Measures the input pipeline: rate, padding, and memory on millions of pairs.

    KERAS_TRANSFORMER_DATA=... python benchmarks/pipeline.py
    KERAS_TRANSFORMER_DATA=... python benchmarks/pipeline.py --pairs 5000000

Without `--pairs`, the script reads Multi30k. With `--pairs`, it draws this number of
pairs at random from Multi30k, appends a number to each, and records memory. It writes
benchmarks/results/pipeline*.json and .md.
"""

import argparse
import json
import pathlib
import tempfile
import time

import interleaved
import machine
import numpy as np
import psutil
import report
import workload

EPOCHS = 3


def own_mib():
    """Returns resident memory in MiB, without file pages, which can be reclaimed."""
    memory = psutil.Process().memory_info()
    return (memory.rss - memory.shared) / 2**20


def rates(dataset, batches):
    """Measures target tokens per second and the fraction of padding on both sides."""
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


def measure_multi30k(arguments, folder):
    from keras_transformer import pipelines

    corpus = workload.corpus(folder)
    batches = pipelines.steps_per_epoch(corpus, workload.BATCH_TOKENS)
    dataset = workload.dataset(folder)
    rates(dataset, 20)
    found = [rates(dataset, batches) for _ in range(EPOCHS)]
    rate = interleaved.summary([each["rate"] for each in found])
    result = {"rate": rate, "padding": found[0]["padding"], "batches": batches}
    training = pathlib.Path(arguments.output) / "training_tiny.json"
    if training.is_file():
        tiny = json.loads(training.read_text())["systems"][0]["tokens_per_second"]
        result["times_tiny_model"] = rate["median"] / tiny["median"]
    return "pipeline", result


def measure_millions(arguments, folder):
    from keras_transformer import pipelines

    source = list(pipelines.TextFiles(*workload.text_files()))
    tokenizer = pipelines.load_tokenizer(folder / "tokenizer")
    rng = np.random.default_rng(1)
    memory = []

    def pairs():
        for number in range(arguments.pairs):
            if number % 500_000 == 0:
                memory.append((f"{number:,} pairs", round(own_mib())))
            one, other = source[rng.integers(len(source))]
            # No two pairs are equal, so caching cannot help.
            yield f"{one} {number}", f"{other} {number}"
        memory.append((f"{arguments.pairs:,} pairs", round(own_mib())))

    start = time.perf_counter()
    corpus = pipelines.encode_corpus(pairs(), tokenizer, tokenizer, folder / "millions")
    encoding = time.perf_counter() - start
    dataset = pipelines.training_dataset(corpus, workload.BATCH_TOKENS, seed=1)
    start = time.perf_counter()
    rates(dataset, 1)
    first = time.perf_counter() - start
    found = rates(dataset, 2000)
    memory.append(("2,000 batches", round(own_mib())))
    result = {"memory": memory, "encoding_seconds": encoding, "first_batch": first}
    return "pipeline_millions", {**result, **found}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, help="number of random pairs")
    parser.add_argument("--output", default=str(report.RESULTS))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        workload.corpus(folder)
        measure = measure_millions if arguments.pairs else measure_multi30k
        name, result = measure(arguments, folder)
    result = {
        "machine": machine.description(),
        "versions": report.versions(),
        **result,
    }
    report.write(arguments.output, name, result)


if __name__ == "__main__":
    main()
